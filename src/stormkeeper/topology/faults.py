"""Error texts about components and scripts, for the submitter and for the operator."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final


def starts_itself(bolt: str) -> str:
    return (
        f"the bolt {bolt!r} started its query itself: return the DataStreamWriter without "
        ".start(); the worker names the query, gives it a checkpoint and starts it"
    )


def starts_beside(topology: str) -> str:
    return (
        f"the script defines the topology {topology!r} and starts a query itself as well: make "
        "that one a bolt which returns its DataStreamWriter"
    )


def starts_nothing(script: Path) -> str:
    return (
        f"{script} defines no Topology and starts no streaming query: there is nothing to run. Have"
        " it define a Topology, or start a query with `.writeStream....start()`"
    )


def unnamed_checkpoints(script: Path, names_none: bool, keeps: bool) -> str:
    """Report queries without a checkpoint; `keeps`: the topology's folder gets one."""
    found = f"{script} names {'no' if names_none else 'not for each query a'} checkpointLocation"
    if keeps:
        return (
            f"{found}: a query without one has its checkpoint in the topology's folder, and goes on"
            " from there when its worker starts again; `storm submit --from` goes on there, too"
        )
    return f"{found}, and topology.checkpoint.scripts is false: a query without one {_ANEW}"


_ANEW: Final = (
    "begins at batch 0 whenever its worker starts again, and writes its rows again. Name one with"
    ' .option("checkpointLocation", …)'
)


def without_checkpoint(query: str) -> str:
    why = "as topology.checkpoint.scripts is false"
    return f"the query {query!r} has no checkpoint, {why}: it {_ANEW}"


#: Of a worker that another supervisor had started.
UNSEEN_END: Final = "its exit code is not known"


def broken_checkpoint(name: str) -> str:
    """Report a damaged checkpoint; `name` is the topology's, or the folder."""
    return (
        "a file of the checkpoint is empty or cut off, as after a power cut: on this machine,"
        f" `storm checkpoint check {name}` says which, and what is lost if it is mended, and"
        f" `storm checkpoint repair {name}` mends it"
    )


_CRASH: Final = "the worker in slot "
_TRACEBACK: Final = "Traceback (most "


def crash(port: int, number: int, reason: str) -> str:
    return f"{_CRASH}{port} crashed ({number} in a row): {reason}"


def crash_with_cause(line: str, cause: str) -> str:
    """Report a crash: the exception's first line, the `crash` line, and the cause.

    Storm's UI shows the first 200 characters of an error.
    """
    lines = [each.strip() for each in cause.splitlines() if each.strip()] or [""]
    has_trace = any(each.startswith(_TRACEBACK) for each in lines)
    first = lines[-1] if has_trace else _first(lines)
    return f"{first}\n{line}" if first == cause.strip() else f"{first}\n{line}:\n{cause}"


def is_crash(error: str) -> bool:
    return any(line.startswith(_CRASH) for line in error.splitlines()[:2])


def newest_line(error: str) -> str:
    """Return an error in one line: the first and last line around a Python traceback."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    traces = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not traces or is_crash(error):
        return _first(lines) if lines else ""
    return " ".join([*lines[: min(traces[0], 1)], lines[-1]])


def _first(lines: Sequence[str]) -> str:
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])


def frame_unread(bolt: str) -> str:
    return (
        f"no component reads from the bolt {bolt!r}, and it returned a DataFrame: add a bolt with "
        f"@topology.bolt({bolt}), or end the query by returning frame.writeStream..."
    )


def no_writer(bolt: str, returned: str) -> str:
    return (
        f"the bolt {bolt!r} returned {returned}, not a DataStreamWriter: end it with "
        "`return frame.writeStream...`"
    )


def writer_read(bolt: str) -> str:
    return (
        f"the bolt {bolt!r} returned a DataStreamWriter, which ends a query, but another bolt "
        "reads from it: return a DataFrame, and write it in a bolt of its own"
    )


#: For a function that returned None.
NOTHING = "nothing (is a `return` missing?)"


def missing_module(name: str, python: str) -> str:
    """Report a missing module without a guess of the package: the name may be another's."""
    return (
        f"No module named {name!r}: name the package that has it in the requirements.txt beside "
        "the code, and install that file in the Python that runs the storm command "
        f"({python} -m pip install -r requirements.txt), or bring the module with --py-files"
    )


#: Maven coordinates of Spark's own connectors, and of others with versions of their own.
_COORDINATES: Final = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}",
    "avro": "org.apache.spark:spark-avro_{scala}:{spark}",
    "protobuf": "org.apache.spark:spark-protobuf_{scala}:{spark}",
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
    """Return the versions of the installed Spark and its Scala, or placeholders."""
    try:
        spark = metadata.version("pyspark")
        found = importlib.util.find_spec("pyspark")
    except (metadata.PackageNotFoundError, ImportError, ValueError):
        return "SPARK-VERSION", "SCALA-VERSION"
    folder = Path((found.origin if found is not None else None) or "").parent
    jars = [jar.stem.split("-")[2].split(".") for jar in folder.glob("jars/scala-library-*.jar")]
    return spark, ".".join(jars[0][:2]) if jars else "SCALA-VERSION"


def coordinates(source: str) -> str | None:
    """Return a data source's Maven coordinates, None if unknown."""
    name = source.lower()
    spark, scala = spark_versions()
    package = _COORDINATES.get(name)
    minor = ".".join(spark.split(".")[:2])
    return None if package is None else package.format(spark=spark, scala=scala, minor=minor)


def missing_source(source: str) -> str:
    package = coordinates(source)
    spark, scala = spark_versions()
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
    return (
        f"{script} uses the data source {source!r}, and no jar comes along: unless the cluster's"
        f" Spark has it, {missing_source(source)}"
    )


def unfetched(packages: str, what: str) -> str:
    return (
        f"Spark did not start, as it could not fetch spark.jars.packages={packages}: {what}. If the"
        " name is right and no repository is reached from here, bring the jars and those that they"
        " need with `storm submit --jars` and leave out --packages, or name a repository that is"
        " reached with -c spark.jars.repositories=URL"
    )


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
