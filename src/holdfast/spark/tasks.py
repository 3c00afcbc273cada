"""What the tasks of source and sink share."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_loaded_objects() -> None:
    """Exclude all objects that are loaded by now from garbage collection, once per process.

    Spark runs a collection in its Python processes after every task. Scanning all modules takes
    40 ms of a core, more than reading or staging thousands of rows.
    """
    gc.freeze()
