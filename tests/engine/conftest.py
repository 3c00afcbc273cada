from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from engine_support import Behind
from holdfast import Queue
from holdfast.engine.calls import SCRIPTS


@pytest.fixture
def behind(client: redis.Redis, queue: Queue) -> Behind:
    """Redis-py on the keys of the test's queue. Scripts are loaded, so calls can be counted."""
    for script in SCRIPTS:
        client.script_load(script.text)
    return Behind(client, queue)


@pytest.fixture
def spoiled(behind: Behind) -> Iterator[Behind]:
    """A look behind a queue that the test breaks: it is removed before the audit."""
    yield behind
    behind.client.unlink(*behind.keys.values())
