"""Spark: queues as tables and streams, and the pipeline (the extra `holdfast[spark]`)."""

from holdfast.spark.datasource import HoldfastDataSource, register
from holdfast.spark.pipeline import Handle, Pipeline, transform
from holdfast.spark.session import prepare, session

__all__ = [
    "Handle",
    "HoldfastDataSource",
    "Pipeline",
    "prepare",
    "register",
    "session",
    "transform",
]
