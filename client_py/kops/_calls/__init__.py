"""Calls: the requests that each makes, without I/O, and how the synchronous client carries them out."""
