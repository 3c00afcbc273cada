"""The command line: `holdfast`. A client of the queue, with no logic of its own."""

from holdfast.cli.main import main

__all__ = ["main"]
