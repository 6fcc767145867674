"""Sorts numbers into even and odd ones: two queries, which a cluster runs in two workers.

    storm submit examples/two_queries.py -c output=/shared/numbers
    storm local examples/two_queries.py

Without ``output`` the numbers are only printed.
"""

from pathlib import Path

from stormkeeper.topology import Topology

topology = Topology(
    "two-queries",
    conf={
        # A folder for the files of both queries; None: what they write is only printed.
        "output": None,
        "rows.per.second": 10,
        # As many workers as there are queries; one worker can run both.
        "topology.workers": 2,
    },
)


@topology.spout
def numbers(spark, conf):
    rate = spark.readStream.format("rate").option("rowsPerSecond", conf["rows.per.second"])
    return rate.load().select("value")


@topology.bolt(numbers)
def even(numbers):
    return numbers.where("value % 2 = 0")


@topology.bolt(numbers)
def odd(numbers):
    return numbers.where("value % 2 = 1")


@topology.bolt(even)
def even_files(even, conf):
    return written(even, conf["output"], "even")


@topology.bolt(odd)
def odd_files(odd, conf):
    return written(odd, conf["output"], "odd")


def written(numbers, output, name):
    writer = numbers.writeStream.trigger(processingTime="1 second")
    if output is None:
        return writer.format("console")
    return writer.format("json").option("path", str(Path(output, name)))
