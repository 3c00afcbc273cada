"""The client, for asyncio."""
