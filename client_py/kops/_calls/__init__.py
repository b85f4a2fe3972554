"""What a call asks of the daemon, without waiting, and how the synchronous client carries it out."""
