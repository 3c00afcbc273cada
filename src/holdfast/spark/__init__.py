"""Spark: queues as tables and streams, and the pipeline (the extra `holdfast[spark]`)."""

from holdfast import extras

try:
    from holdfast.spark.datasource import HoldfastDataSource, register
    from holdfast.spark.pipeline import Handle, Pipeline, transform
    from holdfast.spark.session import prepare, session
except ModuleNotFoundError as error:
    raise extras.missing("spark", error) from None

__all__ = [
    "Handle",
    "HoldfastDataSource",
    "Pipeline",
    "prepare",
    "register",
    "session",
    "transform",
]
