"""The clients, synchronous and asyncio, as users hold them."""
