"""What is wrong with a component or a script, in words: for who reads it, and for who runs it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final


def starts_itself(bolt: str) -> str:
    """Say that a bolt starts its query, which is the worker's to start."""
    return (
        f"the bolt {bolt!r} started its query itself: return the DataStreamWriter without "
        ".start(); the worker names the query, gives it a checkpoint and starts it"
    )


def starts_beside(topology: str) -> str:
    """Say that the script of a topology starts a query outside of it."""
    return (
        f"the script defines the topology {topology!r} and starts a query itself as well: make "
        "that one a bolt which returns its DataStreamWriter"
    )


def starts_nothing(script: Path) -> str:
    """Say that a script does nothing that a worker could run on."""
    return (
        f"{script} defines no Topology and starts no streaming query: there is nothing to run. Have"
        " it define a Topology, or start a query with `.writeStream....start()`"
    )


def unnamed_checkpoints(script: Path, names_none: bool, keeps: bool) -> str:
    """Say what becomes of the queries of a script that name no checkpoint.

    Parameters
    ----------
    script
        The script.
    names_none
        Whether the script names no checkpoint at all, or not one for each query.
    keeps
        Whether such a query gets a checkpoint in the topology's folder.
    """
    found = f"{script} names {'no' if names_none else 'not for each query a'} checkpointLocation"
    if keeps:
        return (
            f"{found}: a query without one has its checkpoint in the topology's folder, and goes on"
            " from there when its worker starts again; `storm submit --from` goes on there, too"
        )
    return f"{found}, and topology.checkpoint.scripts is false: a query without one {_ANEW}"


#: What happens to a query without a checkpoint, and what to do.
_ANEW: Final = (
    "begins at batch 0 whenever its worker starts again, and writes its rows again. Name one with"
    ' .option("checkpointLocation", …)'
)


def without_checkpoint(query: str) -> str:
    """Say of a running query that it has no checkpoint that it could go on from."""
    why = "as topology.checkpoint.scripts is false"
    return f"the query {query!r} has no checkpoint, {why}: it {_ANEW}"


#: How a worker has ended that another supervisor had started.
UNSEEN_END: Final = "its exit code is not known"


def broken_checkpoint(name: str) -> str:
    """Say what can be done about a checkpoint with a file that is empty or cut off.

    Parameters
    ----------
    name
        The topology's name, or the checkpoint's folder.
    """
    return (
        "a file of the checkpoint is empty or cut off, as after a power cut: on this machine,"
        f" `storm checkpoint check {name}` says which, and what is lost if it is mended, and"
        f" `storm checkpoint repair {name}` mends it"
    )


#: How the line of a crash begins.
_CRASH: Final = "the worker in slot "
_TRACEBACK: Final = "Traceback (most "


def crash(port: int, number: int, reason: str) -> str:
    """Return the line that says of a slot's worker that it crashed, for the `number`-th time."""
    return f"{_CRASH}{port} crashed ({number} in a row): {reason}"


def crash_with_cause(line: str, cause: str) -> str:
    """Return the report of a crash whose cause is known, which begins with the exception.

    Storm's UI shows the first 200 characters of an error.

    Parameters
    ----------
    line
        What `crash` returned.
    cause
        What the worker itself has reported.
    """
    lines = [each.strip() for each in cause.splitlines() if each.strip()] or [""]
    has_trace = any(each.startswith(_TRACEBACK) for each in lines)
    first = lines[-1] if has_trace else _first(lines)
    return f"{first}\n{line}" if first == cause.strip() else f"{first}\n{line}:\n{cause}"


def is_crash(error: str) -> bool:
    """Return whether an error of a component is the report of a crash."""
    return any(line.startswith(_CRASH) for line in error.splitlines()[:2])


def newest_line(error: str) -> str:
    r"""Return in one line what happened: of a Python traceback its last line.

    Examples
    --------
    >>> newest_line("it failed:\nTraceback (most recent call last):\n  …\nValueError: no day\n")
    'it failed: ValueError: no day'
    """
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    traces = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not traces or is_crash(error):
        return _first(lines) if lines else ""
    return " ".join([*lines[: min(traces[0], 1)], lines[-1]])


def _first(lines: Sequence[str]) -> str:
    """Return the first line, with the next one where the first only announces it."""
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])


def frame_unread(bolt: str) -> str:
    """Say that a bolt gives rows to nobody."""
    return (
        f"nobody reads from the bolt {bolt!r}, and it returned a DataFrame: add a bolt with "
        f"@topology.bolt({bolt}), or end the query by returning frame.writeStream..."
    )


def no_writer(bolt: str, returned: str) -> str:
    """Say that a bolt which ends a query `returned` no writer."""
    return (
        f"the bolt {bolt!r} returned {returned}, not a DataStreamWriter: end it with "
        "`return frame.writeStream...`"
    )


def writer_read(bolt: str) -> str:
    """Say that a bolt ends a query where another one wants to go on."""
    return (
        f"the bolt {bolt!r} returned a DataStreamWriter, which ends a query, but another bolt "
        "reads from it: return a DataFrame, and write it in a bolt of its own"
    )


#: How a function's result is described where it is None.
NOTHING = "nothing (is a `return` missing?)"


def missing_module(name: str, python: str) -> str:
    """Say that a module is not there, and how to bring it.

    A package whose name is guessed from the module's may be another project's, so none is named.
    """
    return (
        f"No module named {name!r}: name the package that has it in the requirements.txt beside "
        "the code, and install that file in the Python that runs the storm command "
        f"({python} -m pip install -r requirements.txt), or bring the module with --py-files"
    )


#: What Spark's own connectors are called in a repository; other ones have versions of their own.
_OF_SPARK: Final = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}",
    "avro": "org.apache.spark:spark-avro_{scala}:{spark}",
    "protobuf": "org.apache.spark:spark-protobuf_{scala}:{spark}",
}
_OF_OTHERS: Final = {
    "bigquery": "com.google.cloud.spark:spark-bigquery-with-dependencies_{scala}:VERSION",
    "delta": "io.delta:delta-spark_{scala}:VERSION",
    "es": "org.elasticsearch:elasticsearch-spark-30_{scala}:VERSION",
    "hudi": "org.apache.hudi:hudi-spark{minor}-bundle_{scala}:VERSION",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-{minor}_{scala}:VERSION",
    "mongodb": "org.mongodb.spark:mongo-spark-connector_{scala}:VERSION",
    "org.apache.spark.sql.cassandra": (
        "com.datastax.spark:spark-cassandra-connector_{scala}:VERSION"
    ),
    "org.elasticsearch.spark.sql": "org.elasticsearch:elasticsearch-spark-30_{scala}:VERSION",
    "snowflake": "net.snowflake:spark-snowflake_{scala}:VERSION",
}


@functools.cache
def spark_versions() -> tuple[str, str]:
    """Return the versions of the installed Spark and of its Scala; placeholders where none is."""
    try:
        spark = metadata.version("pyspark")
        found = importlib.util.find_spec("pyspark")
    except (metadata.PackageNotFoundError, ImportError, ValueError):
        return "SPARK-VERSION", "SCALA-VERSION"
    folder = Path((found.origin if found is not None else None) or "").parent
    jars = [jar.stem.split("-")[2].split(".") for jar in folder.glob("jars/scala-library-*.jar")]
    return spark, ".".join(jars[0][:2]) if jars else "SCALA-VERSION"


def coordinates(source: str, versions: tuple[str, str] | None = None) -> str | None:
    """Return what the package of a data source is called in a repository; None: not known.

    Parameters
    ----------
    source
        What ``format`` is given.
    versions
        Of Spark and of Scala; None: those that are installed.
    """
    name = source.lower()
    spark, scala = versions or spark_versions()
    package = _OF_SPARK.get(name) or _OF_OTHERS.get(name)
    minor = ".".join(spark.split(".")[:2])
    return None if package is None else package.format(spark=spark, scala=scala, minor=minor)


def missing_source(source: str, versions: tuple[str, str] | None = None) -> str:
    """Say how a data source is brought that Spark does not find.

    Parameters
    ----------
    source, versions
        As of `coordinates`.
    """
    package = coordinates(source, versions)
    spark, scala = versions or spark_versions()
    which = ""
    if package is None:
        package = "GROUP:NAME:VERSION"
        which = f", the package with {source!r} for Spark {spark} and Scala {scala}"
    elif package.endswith("VERSION"):
        which = f", with the VERSION that is made for Spark {spark}"
    return (
        f"bring the data source {source!r}: `storm submit --packages {package}`{which}, or"
        f" `storm local -c spark.jars.packages={package}`; where no repository is reached, bring"
        " its jars and those that they need with --jars"
    )


def may_miss_source(script: Path, source: str) -> str:
    """Say that a script uses a data source of which nothing comes along."""
    return (
        f"{script} uses the data source {source!r}, and no jar comes along: unless the cluster's"
        f" Spark has it, {missing_source(source)}"
    )


def unfetched(packages: str, what: str) -> str:
    """Say that Spark did not get its packages.

    Parameters
    ----------
    packages
        The value of ``spark.jars.packages``.
    what
        What Spark's resolver said.
    """
    return (
        f"Spark did not start, as it could not fetch spark.jars.packages={packages}: {what}. If the"
        " name is right and no repository is reached from here, bring the jars and those that they"
        " need with `storm submit --jars` and leave out --packages, or name a repository that is"
        " reached with -c spark.jars.repositories=URL"
    )


#: What a worker cannot run, and why.
CONNECT: Final = (
    "Spark Connect is not supported: a worker starts, counts and stops queries in a Spark of its"
    " own. Use SparkSession.builder.getOrCreate() without .remote(...); to have tasks run on other"
    " machines, set spark.master to a Spark cluster"
)
PIPELINES: Final = (
    "Spark Declarative Pipelines (spark-pipeline.yml, pyspark.pipelines) are not supported: they"
    " run over Spark Connect, by `spark-pipelines run`. Supported are PySpark streaming scripts,"
    " which start their queries with .writeStream....start(), and scripts that define a Topology"
)
