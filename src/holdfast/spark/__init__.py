"""Spark: queues as tables and streams (the extra `holdfast[spark]`). See docs/spark.md."""

from holdfast.spark.datasource import HoldfastDataSource, register
from holdfast.spark.session import prepare, session

__all__ = ["HoldfastDataSource", "prepare", "register", "session"]
