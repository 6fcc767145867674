"""Makes ``format("pacemaker")`` known to a Spark session, whatever Python its workers run.

Spark finds the format by itself where the Python that its workers run has this package. That Python
is ``PYSPARK_PYTHON`` as it was when the session started, or any ``python3`` where that was not set:
in a virtual environment that is seldom the driver's. Then Spark says no more than that there is no
such format, or that a module is missing, at the end of several traces.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark import daemon
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stormkeeper.daemon.spark import reason
from stormkeeper.errors import EngineError
from stormkeeper.pipeline.source import PacemakerDataSource

#: The worker that reads and decodes. There are others, which Spark asks once what sources are.
_WORKER = "pyspark.worker"


def register(spark: SparkSession) -> None:
    """Register the ``pacemaker`` source with a session, after a look at what its workers run.

    Where ``PYSPARK_PYTHON`` is not set and the ``python3`` that Spark then takes lacks this
    package, the session's Python functions run in the driver's Python from now on. The look is a
    Spark job of one task, which sees one executor.

    Parameters
    ----------
    spark
        A session of this process.

    Raises
    ------
    EngineError
        When the workers' Python lacks this package or what its extra ``spark`` brings; the message
        names it, and the remedy.

    Examples
    --------
    >>> register(spark)  # doctest: +SKIP
    >>> spark.read.format("pacemaker").option("servers", "a:6699").load()  # doctest: +SKIP
    """
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
    """Return what the workers' Python lacks; None where it has this package and its extra."""

    # It comes to the workers by value: what it needs it imports there.
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
        return f"{context.pythonExec} did not run: {reason(error)}"
    return found[0]


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
