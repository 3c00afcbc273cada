"""A session that shares neither cached data nor global views with others of its application.

Spark keeps what `cache`, `persist` and CACHE TABLE cached for the whole application, and takes it
for every plan that reads the same directories, whatever files are in them by now. Global temporary
views are of the whole application as well. So each part has a copy of Spark's shared state in which
these are its own: it sees nothing that others cached, and what it caches ends with it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final

from pyspark.sql import SparkSession

_SHARED_STATE: Final = "org.apache.spark.sql.internal.SharedState"
_VIEWS: Final = "viewDefinitions"
_OWN: Final = frozenset({"cacheManager", "globalTempViewManager", "relationCache"})

_lock: Final = threading.Lock()
_known: dict[Any, _Making] = {}


def session_apart(spark: SparkSession) -> SparkSession:
    """Return a session with the settings and views of another, and with caches of its own."""
    context = spark.sparkContext
    with _lock:
        making = _known.get(context._jvm)
        if making is None:
            _known.clear()  # Of a JVM that has ended.
            making = _known[context._jvm] = _Making(context._jvm)
    return SparkSession(context, making.session(spark._jsparkSession))


def forget_cached(spark: SparkSession) -> None:
    """Drop what was cached in a session apart: nothing can read it any more."""
    with suppress(Exception):  # What went wrong says more.
        spark._jsparkSession.sharedState().cacheManager().clearCache()


class _Making:
    """How such sessions are made in one JVM: what is looked up in it once."""

    def __init__(self, jvm: Any) -> None:
        self._sessions = jvm.org.apache.spark.sql.classic.SparkSession
        self._some = jvm.scala.Some
        self._nothing = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
        self._cache_manager = jvm.org.apache.spark.sql.execution.CacheManager
        self._view_manager = jvm.org.apache.spark.sql.catalyst.catalog.GlobalTempViewManager
        relations = jvm.org.apache.spark.sql.catalyst.analysis.RelationCache
        self._no_relations = relations.empty()
        self._class = jvm.java.lang.Class.forName(_SHARED_STATE, True, _loader(jvm))
        self._fields = {one.getName(): one for one in self._class.getDeclaredFields()}
        views = self._view_manager("").getClass().getDeclaredField(_VIEWS)
        for one in (*self._fields.values(), views):
            one.setAccessible(True)
        self._views = views
        allocating = jvm.java.lang.Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
        allocating.setAccessible(True)
        self._allocating = allocating.get(None)

    def session(self, parent: Any) -> Any:
        """Return a copy of a session, as Java has it."""
        found = self._sessions(
            parent.sparkContext(),
            self._some(self._shared_state(parent.sharedState())),
            self._some(parent.sessionState()),
            parent.extensions(),
            self._nothing,
            self._nothing,
        )
        found.sessionState().artifactManager()  # Copied now, and not when the parent has changed.
        return found

    def _shared_state(self, given: Any) -> Any:
        """Return the same shared state with nothing cached, and views of its own."""
        views = given.globalTempViewManager()
        given.externalCatalog()  # They are made when they are asked for first.
        own_views = self._view_manager(given.globalTempDB())
        self._views.set(own_views, self._views.get(views).clone())
        own = {
            "cacheManager": self._cache_manager(),
            "globalTempViewManager": own_views,
            "relationCache": self._no_relations,
        }
        copied = self._allocating.allocateInstance(self._class)
        for name, field in self._fields.items():
            if name == "bitmap$0":
                field.setByte(copied, field.getByte(given))
            else:
                field.set(copied, own[name] if name in own else field.get(given))
        return copied


def _loader(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()
