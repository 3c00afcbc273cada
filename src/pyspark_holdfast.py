"""Found by Spark itself: it asks every module named `pyspark_…` for its `DefaultSource`."""

from holdfast.spark.datasource import HoldfastDataSource as DefaultSource

__all__ = ["DefaultSource"]
