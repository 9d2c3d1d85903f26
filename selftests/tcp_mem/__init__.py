"""TCP memory accounting and pressure, without any option."""
