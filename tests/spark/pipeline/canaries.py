"""What stands around the roots, and is watched: nobody may open, list, change or fetch it."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SECRET = "canary-9b1f0c"

_WATCHED = (
    0x1 | 0x2 | 0x4 | 0x20 | 0x40 | 0x80 | 0x100 | 0x200
)  # access … open, move, create, delete


class Canaries:
    """Files outside of the roots, and a server that nobody should ask."""

    def __init__(self, place: Path, url: str, asked: list[str]) -> None:
        self.outside = place / "outside"
        self._place = place
        self.url = url
        self.asked = asked
        self.events: list[str] = []
        """Which of the files were opened, listed or changed, where the kernel tells."""
        for name in ("secret.txt", "secret.csv", "deep/secret.txt", "keep/part-00000-x-c000.txt"):
            path = self.outside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{SECRET}\n")
        (self.outside / "victim").mkdir()
        (self.outside / "victim/file.txt").write_text(f"{SECRET}\n")
        self._before = self._look()
        self._inotify, self._directories = _watch([self.outside, *self._below()])

    def check(self, root: Path) -> None:
        """Check that all is as it was, and that nothing of it came into the roots."""
        self.events += _events(self._inotify, self._directories)
        assert self.events == []
        assert self.asked == []
        assert self._look() == self._before
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert SECRET.encode() not in path.read_bytes(), path

    def close(self) -> None:
        os.close(self._inotify)

    def _below(self) -> list[Path]:
        return [path for path in self.outside.rglob("*") if path.is_dir()]

    def _look(self) -> dict[str, object]:
        beside: dict[str, object] = {str(self._place): sorted(self._place.iterdir())}
        return beside | {
            str(path): (
                path.read_text() if path.is_file() else sorted(path.iterdir()),
                path.lstat().st_mtime_ns,
                path.lstat().st_mode,
            )
            for path in [self.outside, *sorted(self.outside.rglob("*"))]
        }


def _watch(directories: list[Path]) -> tuple[int, dict[int, str]]:
    """Let the kernel tell what happens in directories."""
    libc = ctypes.CDLL(None, use_errno=True)
    inotify = libc.inotify_init1(os.O_NONBLOCK)
    assert inotify >= 0, os.strerror(ctypes.get_errno())
    found = {
        libc.inotify_add_watch(inotify, os.fsencode(path), _WATCHED): str(path)
        for path in directories
    }
    return inotify, found


def _events(inotify: int, directories: dict[int, str]) -> list[str]:
    found: list[str] = []
    while True:
        try:
            read = os.read(inotify, 65536)
        except BlockingIOError:
            return found
        at = 0
        while at < len(read):
            watch, mask, _, length = struct.unpack_from("iIII", read, at)
            name = read[at + 16 : at + 16 + length].rstrip(b"\0").decode()
            found.append(f"{directories.get(watch)}/{name} {mask:#x}")
            at += 16 + length


@contextmanager
def web_server() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine that writes down who asks."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            asked.append(self.raw_requestline.decode(errors="replace").strip())
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
