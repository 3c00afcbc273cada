"""Runs handlers in child processes, which can be killed."""
