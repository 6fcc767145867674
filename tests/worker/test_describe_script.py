"""What a script defines, found by running it without Spark."""

import sys

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.errors import TopologyError, WorkerError
from stormkeeper.topology.description import of_topology
from stormkeeper.topology.plan import plan
from stormkeeper.worker.script import NeedsSessionError, describe

WORD_COUNT = """
from pyspark.sql import functions as F
from stormkeeper.topology import Topology

topology = Topology("word-count", conf={"input": "/data", "spark.master": "yarn"})

@topology.spout
def lines(spark, conf):
    return spark.readStream.text(conf["input"])

@topology.bolt(lines, parallelism=3)
def words(lines):
    return lines.select(F.explode(F.split("value", " ")))

@topology.bolt(words, name="out-1")
def out(words):
    return words.writeStream.format("console")
"""

SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # another test's

    def write(text):
        path = tmp_path / "a job.py"
        path.write_text(text)
        return path

    return write


def test_a_topology_has_the_description_of_its_object(script):
    path = script(WORD_COUNT)
    described = describe(path)
    names = {}
    exec(compile(WORD_COUNT, "again", "exec"), names)
    assert described == of_topology(names["topology"])
    assert described.plan() == plan(names["topology"])
    assert described.conf == {"input": "/data", "spark.master": "yarn"}
    assert not described.needs_session


@pytest.mark.parametrize(
    "text",
    [
        SESSION,
        "from pyspark import SparkContext\nSparkContext()",
        "from pyspark import SparkContext\nSparkContext.getOrCreate()",
        "from pyspark.sql import functions as F\nbig = F.col('a') > 1",
        "from pyspark.sql.types import StructType\nschema = StructType.fromDDL('a int')",
        "from pyspark.sql import functions as F\n"
        "try:\n    F.lit(1)\nexcept Exception as e:\n    raise ValueError('no column') from e",
        "try:\n    " + SESSION.strip().replace("\n", "\n    ") + "\nexcept Exception:\n    pass",
    ],
)
def test_a_script_that_needs_a_session_is_known(script, text):
    with pytest.raises(NeedsSessionError) as needed:
        describe(script(WORD_COUNT + text))
    assert not needed.value.first


@pytest.mark.parametrize(
    "above",
    [
        "from pyspark.sql import functions as F\n"
        "@F.udf('string')\ndef upper(text):\n    return text.upper()\n",
        "from pyspark.sql import functions as F\nbig = F.col('a') > 1\n",
    ],
)
def test_use_above_the_topology_needs_a_session_first(script, above):
    with pytest.raises(NeedsSessionError) as needed:
        describe(script(above + WORD_COUNT))
    assert needed.value.first


def test_what_pyspark_does_is_as_before(script):
    methods = [
        (SparkSession.Builder, "getOrCreate"),
        (SparkContext, "__init__"),
        (DataStreamWriter, "start"),
        (DataStreamWriter, "toTable"),
    ]
    before = [getattr(*method) for method in methods]
    with pytest.raises(NeedsSessionError):
        describe(script(SESSION))
    assert [getattr(*method) for method in methods] == before


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("1 / 0", WorkerError, r"(?s)a job.py failed:\n.*line 1.*ZeroDivisionError"),
        (WORD_COUNT + "import sys\nsys.exit('no day given')", WorkerError, "exited with 'no day"),
        (
            "from stormkeeper.topology import Topology\nfor n in 'ab': Topology(n)",
            TopologyError,
            "defines 2 topologies",
        ),
        (
            "from stormkeeper.topology import Topology\n\nTopology('a', conf={'b': {1}})",
            TopologyError,
            r"a job.py: the topology 'a' is empty",
        ),
        (
            WORD_COUNT.replace("'/data'", "{1}").replace('"/data"', "{1}"),
            TopologyError,
            r"a job.py: the conf of the topology 'word-count'\['input'\] is \{1\} \(set\)",
        ),
        (
            WORD_COUNT + "topology.bolt('wrods')",
            TopologyError,
            r"a job.py, line 18: the input 'wrods' is unknown; is 'words' meant\?",
        ),
    ],
)
def test_a_fault_is_said_with_its_place(script, text, error, said):
    with pytest.raises(error, match=said):
        describe(script(text))


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        ("bolt(lines, p", "bolt('liens', p", 11, "the input 'liens' is unknown; is 'lines' meant?"),
        ("bolt(words,", "bolt(print,", 15, "is no component yet"),
        ("bolt(lines, p", "bolt([lines], p", 11, "several inputs are several arguments"),
        ("bolt(lines, p", "bolt(p", 11, "the bolt 'words' reads from nothing"),
        ("words(lines)", "words()", 11, "1 parameter too few"),
        ("words(lines)", "words(lines, more)", 11, "nothing to give to its parameter"),
        ('"out-1"', '"out 1"', 15, "is no id for a bolt"),
        ('"out-1"', '"words"', 15, "has a bolt 'words' already"),
        ("parallelism=3", "parallelism=0", 11, "whole number of 1 or more"),
        ('Topology("word-count"', 'Topology("word count"', 5, "is no name for a topology"),
        ('format("console")', 'format("console").start()', 17, "started its query itself"),
        ("return words.writeStream", "words.writeStream", 16, "returned nothing (is a `return`"),
        (".writeStream", ".where('a').distinct()", 17, "no component reads from the bolt"),
        ("return lines.", "return lines.writeStream.", 13, "but another bolt reads"),
    ],
)
def test_fault_of_a_topology_has_its_line(script, before, after, line, message):
    assert WORD_COUNT.count(before) == 1
    source = WORD_COUNT.replace(before, after)
    if "another bolt" in message:
        source = source.replace('.select(F.explode(F.split("value", " ")))', "")
    if "reads from the bolt" in message:
        source = source.replace('.format("console")', "")
    path = script(source)
    with pytest.raises(TopologyError) as caught:
        describe(path)
    text = str(caught.value)
    assert text.startswith(f"{path}, line {line}: "), text
    assert message in text


@pytest.mark.parametrize(
    "body",
    [
        "return written(words)",
        "return words.transform(f) if a else words.writeStream",
        "words = words.writeStream\n    return words",
        "yield words",
        "def inner():\n        nonlocal words\n        words = written(words)\n"
        "    inner()\n    return words",
    ],
)
def test_bolt_whose_source_tells_nothing_passes(script, body):
    describe(script(WORD_COUNT.replace('return words.writeStream.format("console")', body)))


def test_wrapped_bolt_passes(script):
    source = WORD_COUNT.replace(
        "@topology.bolt(words,",
        "import functools\ndef with_writer(function):\n"
        "    @functools.wraps(function)\n"
        "    def wrapper(words):\n        return function(words).writeStream\n"
        "    return wrapper\n\n@topology.bolt(words,",
    )
    source = source.replace("def out", "@with_writer\ndef out")
    describe(script(source.replace('.writeStream.format("console")', "")))


def test_script_without_topology_and_query_is_a_fault(script):
    path = script("from stormkeeper.topology import Topology\ndef later(): Topology('t')\n")
    with pytest.raises(TopologyError, match=r"a job\.py defines no Topology and starts no"):
        describe(path)


def test_a_script_that_starts_a_query_of_its_own_is_a_plain_one(script):
    text = "from stormkeeper.topology import Component\n"
    text += "from pyspark.sql.streaming.readwriter import DataStreamWriter\n"
    described = describe(script(text + "DataStreamWriter.start(None)\n"))
    assert (described.kind, described.name) == ("script", "a-job")
