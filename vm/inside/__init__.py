"""Guest side of perpatch: what runs inside the booted kernel (no other module of vm/ is imported here)."""
