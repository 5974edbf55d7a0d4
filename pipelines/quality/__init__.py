"""Data quality: what the source promises and what its owners expect, checked at one cut."""

from pipelines.quality.expectations import Expectation, LeftOut, QualityResult, Result
from pipelines.quality.run import run_quality
from pipelines.quality.suite_files import check_suites

__all__ = ["Expectation", "LeftOut", "QualityResult", "Result", "check_suites", "run_quality"]
