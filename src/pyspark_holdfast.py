"""Spark finds this module by its name: it asks every `pyspark_…` module for a `DefaultSource`."""

from holdfast.spark.datasource import HoldfastDataSource as DefaultSource

__all__ = ["DefaultSource"]
