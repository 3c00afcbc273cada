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
        self._views = _field(self._view_manager("").getClass(), "viewDefinitions")
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        state = jvm.java.lang.Class.forName(_SHARED_STATE, True, loader)
        self._own_caches = _field(state, "cacheManager")
        self._own_views = _field(state, "globalTempViewManager")
        self._own_relations = _field(state, "relationCache")
        self._copying = jvm.com.esotericsoftware.kryo.Kryo()
        self._copying.setRegistrationRequired(False)
        self._copying.setInstantiatorStrategy(jvm.org.objenesis.strategy.StdInstantiatorStrategy())
        self._lock = threading.Lock()
        """Kryo does one thing at a time."""

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
        """Return the same shared state with nothing cached, and global views of its own."""
        views = self._view_manager(given.globalTempDB())
        self._views.set(views, self._views.get(given.globalTempViewManager()).clone())
        given.externalCatalog()  # It is made when it is asked for first.
        with self._lock:
            copied = self._copying.copyShallow(given)
        self._own_caches.set(copied, self._cache_manager())
        self._own_views.set(copied, views)
        self._own_relations.set(copied, self._no_relations)
        return copied


def _field(of: Any, name: str) -> Any:
    found = of.getDeclaredField(name)
    found.setAccessible(True)
    return found
