"""Where handlers run: threads, an event loop, or processes."""
