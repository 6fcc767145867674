"""The bench of reading heartbeats runs to its end, on a few workers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench/heartbeats_bench.py"


@pytest.mark.alone
@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
def test_heartbeats_bench_reads_and_follows_all(tmp_path):
    results = tmp_path / "heartbeats.json"
    few = ["--workers", "300", "--bytes", "64", "--readings", "2", "--results", results]
    done = subprocess.run(
        [sys.executable, BENCH, *few], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text())
    assert len(rows) == 6
    assert all(row["workers"] == 300 for row in rows)
