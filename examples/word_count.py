"""Counts the words of a folder of text files, a few files at a time.

    storm local examples/word_count.py
    storm local examples/word_count.py -c input=/some/folder -c output=/some/totals.json

Without ``input`` it reads what every machine with Python has: the sources of Python's own library.
"""

import json
import sysconfig
from collections import Counter
from pathlib import Path

from pyspark.sql import functions as F

from stormkeeper.topology import Topology

topology = Topology(
    "word-count",
    conf={
        # A folder, or a pattern such as /some/*/*.txt; None: the sources of Python's own library.
        "input": None,
        # A file for the totals, as JSON; None: they are only printed.
        "output": None,
        # Small, so that the counts are seen to grow.
        "files.per.trigger": 2,
    },
)


@topology.spout
def lines(spark, conf):
    files = spark.readStream.option("maxFilesPerTrigger", conf["files.per.trigger"])
    return files.text(conf["input"] or library(conf["storm.local.dir"]))


@topology.bolt(lines)
def words(lines):
    split = lines.select(F.explode(F.split("value", r"\W+")).alias("word"))
    # Splitting ", as it" gives an empty word before the comma.
    return split.where("word != ''")


@topology.bolt(words)
def counts(words):
    return words.groupBy("word").count()


@topology.bolt(counts)
def totals(counts, conf):
    every_second = counts.writeStream.outputMode("complete").trigger(processingTime="1 second")
    return every_second.foreachBatch(save(conf["output"]))


def library(local_dir):
    """Link the sources, which are in some hundred folders, into one: Spark lists that at once.

    It passes over files whose names begin with an underscore.
    """
    folder = Path(local_dir, "python-library")
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(sysconfig.get_path("stdlib"))
    for source in (*home.glob("*.py"), *home.glob("*/*.py")):
        link = folder / ".".join(source.relative_to(home).parts)
        if not link.is_symlink():
            link.symlink_to(source)
    return str(folder)


def save(output):
    def save_batch(batch, number):
        totals = Counter(dict(batch.collect()))
        if output is not None:
            write(Path(output), totals)
        most = " · ".join(f"{word} {count:,}" for word, count in totals.most_common(5))
        print(f"batch {number}: {len(totals):,} different words, {totals.total():,} in all; {most}")

    return save_batch


def write(path, totals):
    """Replace the file in one step, so that nobody ever reads half of it."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(totals))
    new.replace(path)
