"""Processes that are found by their mark, and ended."""

import os
import subprocess
import sys
import uuid

import psutil

from stormkeeper.daemon.orphans import RUN_MARK, end_marked, marked
from support.waiting import until


def test_orphan_in_a_session_of_its_own_is_found_by_the_mark_and_ended():
    orphan = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)'], start_new_session=True, stdout=subprocess.DEVNULL); "
        "print(p.pid)"
    )
    run = uuid.uuid4().hex
    code = [sys.executable, "-c", orphan]
    parent = subprocess.run(
        code, env=os.environ | {RUN_MARK: run}, stdout=subprocess.PIPE, text=True, check=True
    )
    pid = int(parent.stdout)
    assert [p.pid for p in marked(run)] == [pid]
    assert end_marked(run, settle_secs=0) == 1
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
    assert end_marked(run, settle_secs=0) == 0


def test_process_of_another_run_is_left_alone():
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env=os.environ | {RUN_MARK: "another"},
    )
    try:
        assert end_marked(uuid.uuid4().hex, settle_secs=0) == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
