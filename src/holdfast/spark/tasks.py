"""What the tasks of source and sink have in common."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_the_collector() -> None:
    """Leave what is loaded by now out of garbage collections, once in a process.

    Spark has its Python processes collect after every task. To go through all modules takes 40 ms
    of a core, more than reading or staging thousands of rows.
    """
    gc.freeze()
