"""The reader's process of `bench_month`: tidies after a tenth of the commits (`month_counts`)."""

from __future__ import annotations

import sys

from deltasmelt.pipelines.runtime import reader_process
from deltasmelt.pipelines.without_pandas import load_pyarrow

if __name__ == "__main__":
    load_pyarrow()
    from tests.benchmarks.month_counts import compress_commits

    compress_commits()
    sys.exit(reader_process.main())
