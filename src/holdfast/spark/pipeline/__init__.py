"""The pipeline: big requests over data, split, transformed on Spark, published once."""

from holdfast.spark.pipeline.handle import Handle, Progress
from holdfast.spark.pipeline.pipeline import Pipeline
from holdfast.spark.pipeline.transforms import transform

__all__ = ["Handle", "Pipeline", "Progress", "transform"]
