"""SO_RESERVE_MEM, the socket option."""
