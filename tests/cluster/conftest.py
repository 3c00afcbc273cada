"""One cluster for all tests of a run, whole again before each of them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.nodes import Nodes, closing
from cluster.watched import Watched
from engine_support import own_server
from faults.shells import SHELLS, Shell, open_queue
from holdfast import Queue

_numbers = itertools.count()


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="hf") as directory:
        nodes = Nodes(Path(directory))
        with closing(nodes):
            yield nodes


@pytest.fixture
def cluster(one_cluster: Nodes) -> Nodes:
    """Three primaries, each with a replica."""
    one_cluster.heal()
    return one_cluster


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> Shell:
    shell: Shell = request.param
    return shell


@pytest.fixture(params=["Queue", pytest.param("AsyncQueue", marks=pytest.mark.slow)])
def slow_shell(request: pytest.FixtureRequest) -> Shell:
    """The other shell only with the longer targets: what waits for a failover takes seconds."""
    shell: Shell = request.param
    return shell


@pytest.fixture
def name() -> str:
    return f"q{next(_numbers)}"


@pytest.fixture
def queue(cluster: Nodes, shell: Shell, name: str) -> Iterator[Queue]:
    """A fresh queue in either shell."""
    with open_queue(shell, name, cluster.url) as queue:
        yield queue
        assert queue.audit() == []


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture(scope="session")
def test_server_url() -> Iterator[str]:
    """The URL of a cluster that is none."""
    with own_server(tcp=True) as server:
        yield f"redis+cluster://127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def one_pair() -> Iterator[Watched]:
    with tempfile.TemporaryDirectory(prefix="hf") as directory:
        watched = Watched(Path(directory))
        with closing(watched):
            yield watched


@pytest.fixture
def watched(one_pair: Watched) -> Watched:
    """A primary and a replica, with a Sentinel."""
    one_pair.heal()
    return one_pair
