"""What the tests of the command line share: running it here, as a process, and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner, Result

from holdfast.cli import main
from support import DEADLINE

COMMAND = [sys.executable, "-m", "holdfast"]


class Commands:
    """The command line, in this process: `hf("counts", "emails")` is what it wrote."""

    def __call__(self, *args: object, code: int = 0, input: bytes | None = None) -> str:
        """Run a command that shall end with `code`; return what it wrote to stdout."""
        return self.ran(*args, code=code, input=input).stdout

    def json(self, *args: object, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code))

    def error(self, *args: object, code: int = 1, input: bytes | None = None) -> str:
        """Run a command that shall not succeed; return the last line of stderr."""
        return self.ran(*args, code=code, input=input).stderr.splitlines()[-1]

    def ran(self, *args: object, code: int = 0, input: bytes | None = None) -> Result:
        result = CliRunner().invoke(main, [*map(str, args)], input=input)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result


@contextmanager
def started(*args: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the command line as a process of its own."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options}
    process = subprocess.Popen(
        [*COMMAND, *args], stderr=subprocess.PIPE, text=True, process_group=0, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Press Ctrl-C; return how it ended, and what it had not yet written."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out, err


def on_a_terminal(
    *args: str, typed: bytes = b"", columns: int = 80, colours: bool = True, kind: str = "xterm"
) -> tuple[int, str]:
    """Run a command on a terminal; return how it ended, and what was on the screen."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": kind}
    if colours:
        environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*COMMAND, *args], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    os.write(ours, typed)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        pass  # That is how a terminal says that nobody is there any more.
    finally:
        os.close(ours)
    return process.wait(DEADLINE), shown.decode()
