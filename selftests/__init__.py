"""The cases. They run inside the guest, as plain pytest."""
