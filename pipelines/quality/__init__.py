"""Data quality: promises of the source and expectations of its owners, checked at one cut.

In reading order: `run` (one run), `cut` (its versions), `expectations` (values), `suite_files` and `derived`
(where expectations come from), `constraints` (of the source's catalog). Then `checks` (the evaluation),
`references`, `document_rows`, `change_log`, `anomalies`, `engine` (Great Expectations). Results: `examples`,
`masking`, `results`, `erasing`, `sentences`, `report`. `schedule`: runs of a running pipeline.
"""

from deltasmelt.pipelines.quality.expectations import Expectation, LeftOut, QualityResult, Result
from deltasmelt.pipelines.quality.run import run_quality
from deltasmelt.pipelines.quality.suite_files import check_suites

__all__ = ["Expectation", "LeftOut", "QualityResult", "Result", "check_suites", "run_quality"]
