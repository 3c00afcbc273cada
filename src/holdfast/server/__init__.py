"""The embedded server: its directory, its keeper process, and the checks of any server's health."""
