"""What drives Storm's own Java, with a program in the place of a JVM; and its target of `make`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.storm_peer import VARIABLE, PeerProcess
from support.waiting import DEADLINE_SECS


class Peer:
    """Runs a text in Python, whatever the driver."""

    def __init__(self, program):
        self._program = program

    def command(self, *_driver, **_conf):
        return [sys.executable, "-c", self._program]


def test_what_does_not_become_ready_is_not_left_behind(tmp_path):
    written = tmp_path / "pid"
    program = (
        "import os, pathlib, sys;"
        f"pathlib.Path({str(written)!r}).write_text(str(os.getpid()));"
        "print('SORRY', flush=True);"
        "sys.stdin.read()"
    )
    process = PeerProcess(Peer(program), "Server", conf={})
    with pytest.raises(AssertionError, match="SORRY"):
        process.start()
    assert not process.running
    assert not psutil.pid_exists(int(written.read_text()))


@pytest.mark.skipif(shutil.which("make") is None, reason="no make command")
def test_without_a_storm_nothing_is_made(tmp_path):
    shutil.copy(Path(__file__).parents[1] / "Makefile", tmp_path)
    env = {k: v for k, v in os.environ.items() if k not in (VARIABLE, "MAKEFLAGS", "MAKELEVEL")}
    ended = subprocess.run(
        ["make", "interop"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(
        "make interop PEER=DIR: which jars of a Storm? (docs/interop.md)"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]
