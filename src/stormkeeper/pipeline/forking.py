"""Spark's daemon for Python workers, which has imported already what each of them needs.

Spark forks a worker for each Python task that runs at the same time, and ends those that were idle
for a minute. Left alone, each of them imports Arrow, pandas and this package for itself: 0.6 s of
CPU, and memory that they could share.
"""

from __future__ import annotations

import gc
import os
import sys

from pyspark import daemon

#: The worker that reads and decodes. There are others, which Spark asks once what sources are.
_WORKER = "pyspark.worker"


def main() -> None:
    """Fork workers until Spark closes the standard input."""
    if sys.argv[1:] == [_WORKER]:
        _prepare()
    daemon.manager()


def _prepare() -> None:
    # No thread of its own, which a fork would not have.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import pandas  # noqa: F401, PLC0415
    import pyspark.worker  # noqa: F401, PLC0415

    from stormkeeper.pipeline import decode, source  # noqa: F401, PLC0415

    # What is looked through for unreachable objects is written to, and shared no more.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
