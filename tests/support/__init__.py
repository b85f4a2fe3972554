"""What the test suites share: a daemon to test, a low-level client, shared memory, and /proc."""
