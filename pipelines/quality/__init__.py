"""Data quality: promises of the source and expectations of its owners, checked at one cut."""

from deltasmelt.pipelines.quality.expectations import Expectation, LeftOut, QualityResult, Result
from deltasmelt.pipelines.quality.run import run_quality
from deltasmelt.pipelines.quality.suite_files import check_suites

__all__ = ["Expectation", "LeftOut", "QualityResult", "Result", "check_suites", "run_quality"]
