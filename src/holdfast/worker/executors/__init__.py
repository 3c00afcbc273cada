"""Where handlers run: threads, an event loop, or processes. Each is an `Executor` (`slots.py`)."""
