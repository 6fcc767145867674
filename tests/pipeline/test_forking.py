import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stormkeeper.pipeline import forking
from support.waiting import until


@pytest.fixture
def daemon(request):
    """Spark's daemon of Python workers, as the JVM starts it, and the port at which it forks."""
    environment = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "s"}
    command = [sys.executable, "-m", forking.__name__, request.param]
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
