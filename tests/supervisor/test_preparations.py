"""Preparations are carried out beside, and answered until the end."""

import queue
import sys
import threading
from pathlib import Path

import pytest

from stormkeeper.errors import EnvironmentBuildError, PeerError, SupervisorError
from stormkeeper.supervisor.slot_model import PreparationFailed, Prepared
from stormkeeper.supervisor.topology_code import PreparationThreads
from support.waiting import DEADLINE_SECS, until


class Code:
    def __init__(self):
        self.go_on = threading.Event()
        self.failure = None
        self.asked = []

    def fetch(self, _, is_wanted):
        self.asked.append(is_wanted)
        assert self.go_on.wait(DEADLINE_SECS)
        if self.failure:
            raise self.failure

    def manifest(self, storm_id):
        return f"manifest of {storm_id}"

    def unpacked(self, storm_id):
        return Path(storm_id)


class Environments:
    failure = None
    is_closed = False

    def python(self, manifest, unpacked, *, wait_secs):
        assert manifest == f"manifest of {unpacked}"
        assert wait_secs > 0
        if self.failure:
            raise self.failure
        return Path(sys.executable)

    def identity(self, manifest):
        return manifest.removeprefix("manifest of ")

    def progress(self, name):
        return f"pip: {name}" if name else ""

    def close(self):
        self.is_closed = True


@pytest.fixture
def code():
    return Code()


@pytest.fixture
def environments():
    return Environments()


@pytest.fixture
def answers():
    return queue.SimpleQueue()


@pytest.fixture
def preparing(code, environments, answers):
    return PreparationThreads(code, environments, lambda *answer: answers.put(answer))


def test_what_was_done_is_answered(preparing, code, answers):
    with pytest.raises(SupervisorError, match="no environment for wc"):
        preparing.python("wc")
    preparing.begin(6700, 1, "wc")
    assert preparing.progress("wc") is None
    code.go_on.set()
    assert answers.get(timeout=DEADLINE_SECS) == (6700, Prepared(1))
    assert preparing.python("wc") == Path(sys.executable)


def test_what_was_not_done_is_answered_with_the_reason(preparing, code, environments, answers):
    code.failure = PeerError("no Nimbus answers")
    code.go_on.set()
    preparing.begin(6700, 1, "wc")
    assert answers.get(timeout=DEADLINE_SECS) == (6700, PreparationFailed(1, "no Nimbus answers"))
    code.failure, environments.failure = None, EnvironmentBuildError("pip ended")
    preparing.begin(6701, 2, "wc")
    assert answers.get(timeout=DEADLINE_SECS) == (6701, PreparationFailed(2, "pip ended"))


def test_a_defect_is_answered_too(preparing, code, environments, answers, caplog):
    environments.failure = ZeroDivisionError("a defect")
    code.go_on.set()
    preparing.begin(6700, 1, "wc")
    port, answer = answers.get(timeout=DEADLINE_SECS)
    assert (port, answer.request) == (6700, 1)
    assert "ZeroDivisionError('a defect')" in answer.reason
    assert "Traceback" in caplog.text


def test_nothing_is_answered_after_the_end(preparing, code, environments, answers):
    preparing.begin(6700, 1, "wc")
    (is_wanted,) = until(lambda: code.asked)
    assert is_wanted()
    preparing.close()
    assert not is_wanted()
    code.go_on.set()
    until(lambda: not [t for t in threading.enumerate() if t.name == "code wc"])
    assert answers.empty()
    assert environments.is_closed


def test_what_pip_does_is_known_of_each_topology(preparing, code, environments, answers):
    environments.failure = EnvironmentBuildError("pip ended")  # it is built again later
    code.go_on.set()
    preparing.begin(6700, 1, "wc")
    answers.get(timeout=DEADLINE_SECS)
    assert (preparing.progress("wc"), preparing.progress("job")) == ("pip: wc", None)
