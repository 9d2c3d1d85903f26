"""Writers with SO_SNDBUF under memory pressure: who is woken when, and who spins."""
