"""Faults that the source of a script tells, and what it leaves to whoever runs it."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.script_source import (
    check,
    formats,
    imports_topology,
    modules_beside,
    names_checkpoints,
)

IMPORT = "from stormkeeper.topology import Topology\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("from pyspark.sql import SparkSession\nimport json, os.path", False),
        ("import stormkeeper.pipeline", False),
        ("from stormkeeper import conf", False),
        ("not Python (", False),
        ("import unheard_of", False),
        (IMPORT, True),
        ("from stormkeeper import topology", True),
        ("import stormkeeper.topology.topology as t", True),
        ("def f():\n    from stormkeeper.topology import Topology", True),
        ("import beside", True),
        ("from package import job", True),
        ("import package.job", True),
        ("import package", False),
        ("import outward", True),
        ("import brought", True),
        ("import packed", True),
        ("import circle", False),
    ],
)
def test_whether_a_script_or_its_modules_import_topology(tmp_path, text, expected):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here / "package", here / "outward", elsewhere):
        folder.mkdir(parents=True)
    for file, content in {
        "beside.py": "import other",
        "other.py": IMPORT,
        "circle.py": "import circle, circle2",
        "circle2.py": "import circle",
        "package/__init__.py": "",
        "package/job.py": IMPORT,
        "outward/__init__.py": "from .inner import topology",
        "outward/inner.py": "from . import deeper",
        "outward/deeper.py": IMPORT,
        "script.py": text,
    }.items():
        (here / file).write_text(content)
    (elsewhere / "brought.py").write_text(IMPORT)
    with zipfile.ZipFile(elsewhere / "more.zip", "w") as archive:
        archive.writestr("packed.py", IMPORT)
    py_files = [elsewhere / "brought.py", elsewhere / "more.zip"]
    assert imports_topology(here / "script.py", py_files) is expected


GOOD = """
from pyspark.sql import functions as F
from stormkeeper.topology import Topology

topology = Topology("good", conf={"input": "/data"})

@topology.spout(parallelism=2)
def lines(spark, conf):
    return spark.readStream.text(conf["input"])

@topology.bolt(lines)
def words(lines, *, separator: str = " ") -> "DataFrame":
    return lines.select(F.explode(F.split("value", separator)).alias("word"))

@topology.bolt(words, "lines", name="all-of-it")
def both(words, lines):
    return words.union(lines)

@topology.bolt(both)
def out(both):
    return both.writeStream.foreachBatch(save)

def save(batch, number):
    batch.write.parquet("/out")
"""


@pytest.fixture
def script(tmp_path):
    def write(source):
        path = tmp_path / "job.py"
        path.write_text(source)
        return path

    return write


def said(path, *py_files):
    with pytest.raises(TopologyError) as caught:
        check(path, py_files)
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        ("(parallelism=2)", "(parallelism=2", 7, "'(' was never closed"),
        (
            "from pyspark.sql",
            "from pysparc.sql",
            2,
            "No module named 'pysparc.sql': name the package",
        ),
    ],
)
def test_faults_and_their_lines(script, before, after, line, message):
    path = script(GOOD.replace(before, after))
    text = said(path)
    assert text.startswith(f"{path}, line {line}: "), text
    assert message in text


@pytest.mark.parametrize(
    "source",
    [
        GOOD,
        "",
        "print('a plain script')\nimport os.path, __main__\nspark.readStream.writeStream.start()",
        "try:\n    import no_such_module\nexcept ImportError:\n    pass\n",
        "if False:\n    import no_such_module\n",
        "def later():\n    import no_such_module\n",
        "import sys\nsys.path.append('/elsewhere')\nimport no_such_module\n",
    ],
)
def test_what_is_right_or_left_open_is_passed(script, source):
    ast.parse(source)
    check(script(source))


def test_the_examples_are_right():
    for example in (Path(__file__).parents[2] / "examples").glob("*.py"):
        check(example)


def test_modules_beside_it_and_those_it_brings_are_there(script, tmp_path):
    path = script("import single\n")
    (tmp_path / "beside.py").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "single.py").touch()
    (elsewhere / "unasked.py").touch()
    with zipfile.ZipFile(elsewhere / "more.zip", "w") as archive:
        archive.writestr("packed/__init__.py", "")
    brought = [elsewhere / "single.py", elsewhere / "more.zip"]
    for name in ("beside", "single", "packed.inner", "sys"):
        path.write_text(f"import {name}\n")
        check(path, brought)
    path.write_text("import packed.inner\n")
    assert "No module named 'packed.inner'" in said(path, brought[0])
    path.write_text("import unasked\n")
    text = said(path, *brought)
    assert text == (
        f"{path}, line 1: No module named 'unasked': name the package that has it in the "
        "requirements.txt beside the code, and install that file in the Python that runs the storm "
        f"command ({sys.executable} -m pip install -r requirements.txt), or bring the module with "
        "--py-files"
    )


def test_a_script_that_cannot_be_read(tmp_path):
    assert said(tmp_path) == f"{tmp_path} cannot be read: Is a directory"


def test_nothing_of_the_script_is_run(script, tmp_path):
    """Neither its module level, nor defaults, decorators and annotations."""
    touch = f"open({str(tmp_path / 'ran')!r}, 'w')"
    source = GOOD.replace('separator: str = " "', f"separator: {touch} = {touch}")
    source = source.replace("conf={", f"conf={{'a': {touch}, ") + f"\n{touch}\n"
    check(script(source))
    assert not (tmp_path / "ran").exists()


def test_reading_a_script_imports_no_pyspark(script):
    code = (
        "import sys; from pathlib import Path; "
        "from stormkeeper.topology.script_source import check; "
        f"check(Path({str(script(GOOD))!r})); print('pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"


def test_modules_beside_a_script(tmp_path):
    for name in ("package", "loose/deep", "json", "unused"):
        (tmp_path / name).mkdir(parents=True)
    text = "import json\nimport first\ndef f():\n    import loose.deep.a\n"
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "first.py").write_text("from package import inner, missing")
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from ... import beyond\nimport second")
    (tmp_path / "second.py").write_text("x = (")
    (tmp_path / "third.py").write_text("")
    (tmp_path / "loose" / "deep" / "a.py").write_text("from . import b")
    (tmp_path / "loose" / "deep" / "b.py").write_text("import fourth")
    (tmp_path / "fourth.py").write_text("")
    names = ["first.py", "fourth.py", "loose", "package", "second.py"]
    assert modules_beside(tmp_path / "script.py") == [tmp_path / name for name in names]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("a.writeStream.start()", False),
        ("a.writeStream.option('checkpointLocation', place).start()", True),
        ("a.writeStream.start(checkpointLocation=place)", True),
        ("a.writeStream.start(); b.writeStream.option('checkpointlocation', p).start()", None),
        ("spark.conf.set('spark.sql.streaming.checkpointLocation', p); a.writeStream", True),
        ("'It has no checkpointLocation'; a.writeStream.start()", False),
        ("beside.start(a)", True),
        ("def f(:", None),
    ],
)
def test_whether_a_script_names_its_checkpoints(lines, named, tmp_path):
    beside = "def start(frame):\n frame.writeStream.option('checkpointLocation', 'x').start()\n"
    (tmp_path / "beside.py").write_text(beside)
    script = tmp_path / "job.py"
    script.write_text(("import beside\n" if "beside" in lines else "") + lines + "\n")
    assert names_checkpoints(script) is named


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from pyspark import pipelines as dp", "Pipelines"),
        ("import pyspark.pipelines", "Pipelines"),
        ("spark = SparkSession.builder.remote('sc://host').getOrCreate()", "Spark Connect is not"),
    ],
)
def test_what_a_worker_cannot_run_is_refused_with_its_line(line, said, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(f"import os\n{line}\n")
    with pytest.raises(TopologyError, match=rf"job.py, line 2: .*{said}"):
        check(script)
    script.write_text(f"import os\nif 'HERE' in os.environ:\n    {line}\n")
    check(script)


def test_which_data_sources_a_script_uses(tmp_path):
    (tmp_path / "beside.py").write_text("def f(a): a.format('delta')\n")
    script = tmp_path / "job.py"
    script.write_text("import beside\na.format('kafka').load()\na.format(b)\n'{}'.format(1, 2)\n")
    assert formats(script) == {"kafka", "delta"}
    script.write_text("b.config('spark.jars.packages', x)\na.format('kafka').load()\n")
    assert formats(script) == set()
