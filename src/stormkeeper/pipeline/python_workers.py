"""Spark's Python processes: a check for this package, and a daemon for fast starts.

Spark finds ``format("pacemaker")`` without `register` if the workers' Python (``PYSPARK_PYTHON``,
or any ``python3``) has this package. As ``spark.python.daemon.module``, this module imports once
what each forked worker needs, 0.6 s of CPU.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import daemon
from pyspark.errors import PySparkException

from stormkeeper.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The worker that reads and decodes; Spark starts others once, to plan sources.
_WORKER = "pyspark.worker"


def register(spark: SparkSession) -> None:
    """Register the ``pacemaker`` source with a session, after a check of the workers' Python.

    The check is a Spark job on one executor. If ``PYSPARK_PYTHON`` is not set and ``python3`` lacks
    this package, the session's Python functions run in the driver's Python from now on. Raises
    `EngineError` if the workers' Python lacks this package or its extra ``spark``.

    >>> register(spark)  # doctest: +SKIP
    """
    # Here, as daemons that fork no decoding worker do without Arrow.
    from stormkeeper.pipeline.source import PacemakerDataSource  # noqa: PLC0415

    context: Any = spark.sparkContext
    lacking = _lacking(context)
    if lacking is not None and "PYSPARK_PYTHON" not in os.environ:
        chosen, context.pythonExec = context.pythonExec, sys.executable
        if _lacking(context) is None:
            lacking = None
        else:
            context.pythonExec = chosen
    if lacking is not None:
        raise EngineError(
            f'Spark\'s workers cannot read format("pacemaker"): {lacking}; set PYSPARK_PYTHON to a '
            "Python that has stormkeeper[spark] on every machine, such as PYSPARK_PYTHON="
            f"{sys.executable}, before the session is started"
        )
    spark.dataSource.register(PacemakerDataSource)


def _lacking(context: Any) -> str | None:
    # Pickled by value for the workers, so its imports are inside.
    def look(_: Iterable[int]) -> list[str | None]:
        import importlib.util  # noqa: PLC0415
        import platform  # noqa: PLC0415
        import sys  # noqa: PLC0415

        names = ("stormkeeper", "pandas", "pyarrow")
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        where = f"they run {sys.executable} on {platform.node()}"
        return [f"{where}, which has no {missing[0]}" if missing else None]

    try:
        found: list[str | None] = context.parallelize([0], 1).mapPartitions(look).collect()
    except (PySparkException, Py4JError) as error:
        from stormkeeper.daemon.spark import reason  # noqa: PLC0415

        return f"{context.pythonExec} did not run: {reason(error)}"
    return found[0]


def main() -> None:
    """Fork workers until Spark closes the standard input."""
    if sys.argv[1:] == [_WORKER]:
        _prepare()
    daemon.manager()


def _prepare() -> None:
    # A fork would not have OpenBLAS's threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import pandas  # noqa: F401, PLC0415
    import pyspark.worker  # noqa: F401, PLC0415

    from stormkeeper.pipeline import decoded_rows, source  # noqa: F401, PLC0415

    # The garbage collector writes to visited objects, which would end their sharing.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
