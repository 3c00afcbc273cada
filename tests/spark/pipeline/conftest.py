"""A pipeline of its own for each test, in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.spark import Pipeline
from support import TestServer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def pipeline(test_server: TestServer, queue_name: str, root: Path) -> Iterator[Pipeline]:
    with Pipeline(queue_name, test_server.queue_url, roots=root) as pipeline:
        yield pipeline
