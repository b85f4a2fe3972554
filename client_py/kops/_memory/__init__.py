"""Memory that the daemon can open: shared memory of this process, and device memory that was exported."""
