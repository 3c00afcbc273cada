"""The group of commands, and what they have in common."""

from __future__ import annotations

import click

from holdfast.cli.work import work
from holdfast.errors import HoldfastError


class _Commands(click.Group):
    """Commands whose errors are one line, and no traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast")
def main() -> None:
    """Work with Holdfast queues: jobs that are not lost."""


main.add_command(work)
