"""Cases that take the memory controller from cgroup v2: a directory of their own, so that they share one guest."""
