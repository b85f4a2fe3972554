"""The clients, synchronous and asyncio, and functions of a default one."""
