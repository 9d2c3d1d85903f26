"""Host side of perpatch: one module a stage, from series to matrix."""
