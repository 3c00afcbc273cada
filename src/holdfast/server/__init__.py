"""The embedded server: its directory, the process that keeps it, and what a server must be like."""
