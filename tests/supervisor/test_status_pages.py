"""A supervisor's metrics and health."""

import pytest

from stormkeeper.conf import defaults
from stormkeeper.supervisor import process
from stormkeeper.supervisor.http_pages import (
    MAX_SILENCE,
    SupervisorStatus,
    slot_lines,
    status_pages,
)
from stormkeeper.supervisor.slot_model import SlotAssignment
from stormkeeper.supervisor.slots import SlotState, SlotStatus

WORK = SlotAssignment("wc-1-1", {"out": "1-1-0"})
EMPTY = SlotStatus(SlotState.EMPTY, None, None, 0, "")
FAILING = SlotStatus(SlotState.BACKING_OFF, WORK, None, 3, "it ended by SIGKILL\nand more")
SEEN = SupervisorStatus(1000.0, {6701: FAILING, 6700: EMPTY}, {6701: 2**30}, 7, 3, 1)


@pytest.fixture
def said():
    """Returns the status and the text of a page."""
    at = {"now": 1000.0, "why": None}

    def page(path, **changes):
        at.update(changes)
        made = status_pages(lambda: SEEN, lambda: at["why"], lambda: at["now"])[path]("")
        return made.status, made.body.decode()

    return page


def test_the_metrics_are_of_the_slots(said):
    _, text = said("/metrics")
    lines = text.splitlines()
    for line in (
        "ready 1.0",
        'slots{state="empty"} 1.0',
        'slots{state="backing_off"} 1.0',
        'slots{state="running"} 0.0',
        'worker_memory_bytes{port="6701"} 1.073741824e+09',
        "launches_total 7.0",
        "crashes_total 3.0",
        "problems_total 1.0",
    ):
        assert f"stormkeeper_supervisor_{line}" in lines
    assert "stormkeeper_supervisor_ready 0.0" in said("/metrics", why="it is starting")[1]


def test_it_is_healthy_while_it_looks_after_its_slots(said):
    assert said("/healthz", now=1000.0 + MAX_SILENCE) == (200, "ok\n")
    status, text = said("/healthz", now=1000.5 + MAX_SILENCE)
    assert (status, text) == (503, "the slots were last looked after 10.5 s ago\n")


def test_readyz_shows_readiness_and_each_slot(said):
    slots = (
        "6700 empty\n"
        "6701 waiting before the next start, wc-1-1, 3 crashes in a row, it ended by SIGKILL\n"
    )
    assert said("/readyz") == (200, "ready\n" + slots)
    assert said("/readyz", why="the disk is full") == (503, "the disk is full\n" + slots)
    assert [*slot_lines(SupervisorStatus(0.0))] == []
    [line] = slot_lines(SupervisorStatus(0.0, foreign=frozenset({"wc-1-1"})))
    assert line.startswith("wc-1-1 is not run here: a Nimbus that is not ours")


@pytest.mark.parametrize(("host", "is_said"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_they_are_there_unless_somebody_says_otherwise(host, is_said, caplog):
    conf = defaults()
    assert conf["logviewer.port"] is not None
    conf = conf.with_values({"logviewer.port": 0, "supervisor.bind.host": host})
    with process._listener(conf):
        assert ("authentication is off" in caplog.text) is is_said
    assert process._listener(conf.with_values({"logviewer.port": None})) is None
