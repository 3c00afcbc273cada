"""The client, for threads. Generated from aio/__init__.py: do not edit."""
