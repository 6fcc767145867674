"""Sessions whose workers run another Python: one that has PySpark, and not this package."""

import os
import re
import socket
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import py4j
import pyspark
import pytest

from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import python_workers
from support.heartbeats import heartbeat, path
from support.waiting import until

pytestmark = [pytest.mark.spark]

PAGE = (Path(__file__).parents[2] / "docs" / "pacemaker-clients.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

#: What PySpark needs for data sources.
PARTS = (
    "pyspark",
    "py4j",
    "pyarrow",
    "numpy",
    "numpy.libs",
    "pandas",
    "dateutil",
    "pytz",
    "six.py",
)


@pytest.fixture
def other(tmp_path):
    """The folder of the programs of a virtual environment with PySpark alone."""
    venv.create(tmp_path / "venv", symlinks=True)
    (folder,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    places = {Path(module.__file__).parents[1] for module in (pyspark, py4j)}
    for place in places:
        for part in PARTS:
            if (place / part).exists():
                (folder / part).symlink_to(place / part)
    return tmp_path / "venv" / "bin"


def run(python, program, folder, **environ):
    """Run a program; return what it printed and said, without Spark's greetings."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
    settings = "--master local[1] --conf spark.ui.enabled=false pyspark-shell"
    done = subprocess.run(
        [str(python), "-c", program],
        cwd=folder,
        env={**inherited, "PYSPARK_SUBMIT_ARGS": settings, **environ},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_example_reads_with_any_python3_or_names_the_remedy(pacemaker, other, tmp_path):
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("wc-1-17"), heartbeat("wc-1-17"))
    (example,) = (code for code in EXAMPLES if "pyspark_pacemaker.register(" in code)
    example = example.replace("pacemaker-1:6699,pacemaker-2:6699", pacemaker.address)
    (cannot,) = (line for line in PAGE.splitlines() if line.startswith("Spark's workers cannot"))
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    base = tmp_path / "base"
    base.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    base.chmod(0o755)
    said = run(
        sys.executable,
        example
        + f"""
import os
for python in ({str(other / "python3")!r}, {str(base)!r}, "/nowhere"):
    # As if it had been so before the session started. The second has no extra, and the third is no
    # Python at all.
    os.environ["PYSPARK_PYTHON"] = spark.sparkContext.pythonExec = python
    try:
        pyspark_pacemaker.register(spark)
    except Exception as error:
        print(error)
""",
        tmp_path,
        PATH=f"{other}:{os.environ['PATH']}",
    )
    assert path("wc-1-17") in said
    lines = [line for line in said.splitlines() if line.startswith("Spark's workers")]
    lacks, lacks_extra, is_none = lines
    pattern = re.escape(cannot).replace(re.escape("/usr/bin/python3 on node-7"), r"(\S+) on \S+")
    pattern = pattern.replace("/opt/stormkeeper/bin/python", re.escape(sys.executable))
    assert re.fullmatch(pattern, lacks)[1] == str(other / "python3")
    assert ", which has no pyarrow; set PYSPARK_PYTHON to a Python that has " in lacks_extra
    assert "/nowhere did not run: " in is_none


@pytest.mark.slow
def test_an_environment_with_pyspark_alone_reads_with_our_python(pacemaker, other, tmp_path):
    (example,) = (code for code in EXAMPLES if "/opt/stormkeeper/bin/python" in code)
    example = example.replace("pacemaker-1:6699,pacemaker-2:6699", pacemaker.address)
    example = example.replace("/opt/stormkeeper/bin/python", sys.executable)
    lacking = "try:\n    import stormkeeper\nexcept ImportError as error:\n    print(error)\n"
    said = run(other / "python3", lacking + example, tmp_path)
    assert "No module named 'stormkeeper'" in said
    assert re.search(rf"{pacemaker.address}\|\s*true", said)


@pytest.fixture
def daemon(request):
    """Spark's daemon of Python workers, as the JVM starts it, and the port at which it forks."""
    environment = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "s"}
    command = [sys.executable, "-m", python_workers.__name__, request.param]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        yield process, int.from_bytes(process.stdout.read(4), "big")
        process.stdin.close()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="tells what a process has mapped")
@pytest.mark.parametrize(
    ("daemon", "prepared"),
    [("pyspark.worker", True), ("pyspark.sql.worker.lookup_data_sources", False)],
    indirect=["daemon"],
)
def test_a_worker_begins_with_what_it_needs(daemon, prepared):
    process, port = daemon
    with socket.create_connection(("127.0.0.1", port), 60):
        (worker,) = until(lambda: psutil.Process(process.pid).children())
        assert ("libarrow" in Path(f"/proc/{worker.pid}/maps").read_text()) is prepared


def test_who_only_plans_what_is_read_does_without_pandas():
    """Spark keeps a process for each query that plans; with pandas it has 40 MB more."""
    program = "import sys, stormkeeper.pipeline.source as _; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
