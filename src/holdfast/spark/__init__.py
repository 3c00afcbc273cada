"""Spark: queues as tables and streams, and the pipeline (the extra `[spark]`)."""

from holdfast.errors import missing_extra

try:
    from holdfast.spark.datasource import HoldfastDataSource, register
    from holdfast.spark.pipeline import Handle, Pipeline, transform
    from holdfast.spark.session import prepare, session
except ModuleNotFoundError as error:
    raise missing_extra("spark", error) from None

__all__ = [
    "Handle",
    "HoldfastDataSource",
    "Pipeline",
    "prepare",
    "register",
    "session",
    "transform",
]
