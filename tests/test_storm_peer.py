"""What drives Storm's own Java, with a program in the place of a JVM."""

import sys

import psutil
import pytest

from support.storm_peer import PeerProcess


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
