import pyarrow as pa
import pytest

from stormkeeper.conf import Address
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import last_pulses
from stormkeeper.pipeline.last_pulses import LastPulses
from stormkeeper.pipeline.liveness_columns import WORKERS
from stormkeeper.pipeline.source import Options
from stormkeeper.pipeline.worker_liveness import LastPulseFacts
from support.heartbeats import heartbeat, path


def worker(name):
    return WorkerId(name, "node", 6700)


def silent(name, server, revision=1, last_seen=0.0):
    found = {**worker(name)._asdict(), "server": server.address, "instance": "x"}
    return found | {"revision": revision, "last_seen": last_seen}


def table(*found):
    return pa.Table.from_pylist(list(found), schema=WORKERS)


@pytest.fixture
def asking():
    def ask(*servers, patience=60.0):
        addresses = tuple(Address.parse(server.address, 0) for server in servers)
        return LastPulses(Options(addresses, timeout_secs=patience))

    return ask


def send(server, name, **more):
    with PacemakerClient(server.address) as client:
        client.send_pulse(path(name), heartbeat(name, **more))


def test_who_said_that_it_was_done_is_completed(start_pacemaker, asking):
    a, b = start_pacemaker(), start_pacemaker()
    send(a, "done", completed=True)
    send(b, "done-too", completed=True)
    send(a, "killed")
    with PacemakerClient(a.address) as client:
        client.send_pulse(path("garbage"), b"garbage")
    rows = [silent(name, a) for name in ("done", "killed", "garbage", "expired")]
    said = asking(a, b)(table(*rows, silent("done-too", b)), {a.address, b.address})
    assert said == LastPulseFacts({worker("done"), worker("done-too")}, set())


@pytest.mark.parametrize("name", ["é-🔥-1-17", "..", "\ue000-1-17"])
def test_path_invalid_in_zookeeper_is_read_like_any_other(pacemaker, asking, name):
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(f"/workerbeats/{name}/node-6700", heartbeat(name, completed=True))
    said = asking(pacemaker)(table(silent(name, pacemaker)), {pacemaker.address})
    assert said == LastPulseFacts(completed={worker(name)}, unread=set())


def test_a_pulse_is_read_once(pacemaker, asking):
    ask = asking(pacemaker)
    send(pacemaker, "t")
    rows = table(silent("t", pacemaker))
    assert ask(rows, {pacemaker.address}) == LastPulseFacts(set(), set())
    send(pacemaker, "t", completed=True)
    assert ask(rows, {pacemaker.address}) == LastPulseFacts(set(), set())  # it did not ask
    # Another pulse is another question, and so is the same one after it was not silent.
    assert ask(table(silent("t", pacemaker, 2)), {pacemaker.address}).completed == {worker("t")}
    assert ask(table(), {pacemaker.address}) == LastPulseFacts(set(), set())
    assert ask(table(silent("t", pacemaker, 2)), {pacemaker.address}).completed == {worker("t")}


def test_who_could_not_be_read_is_asked_again(start_pacemaker, asking):
    up, hanging = start_pacemaker(), start_pacemaker()
    both = {up.address, hanging.address}
    send(up, "killed")
    send(hanging, "done", completed=True)
    rows = table(silent("killed", up), silent("done", hanging))
    hanging.suspend()
    # What does not answer is not asked; what seemed to answer and does not is asked again.
    assert asking(up, hanging)(rows, {up.address}) == LastPulseFacts(set(), set())
    ask = asking(up, hanging, patience=0.5)
    assert worker("done") in ask(rows, both).unread
    hanging.resume()
    ask._options = asking(up, hanging)._options
    assert ask(rows, both) == LastPulseFacts({worker("done")}, set())


def test_of_many_the_longest_silent_are_read_first(pacemaker, asking, monkeypatch):
    monkeypatch.setattr(last_pulses, "_AT_ONCE", 2)
    for name in "abc":
        send(pacemaker, name, completed=True)
    rows = table(*(silent(name, pacemaker, last_seen=at) for at, name in enumerate("cba")))
    servers = {pacemaker.address}
    assert asking(pacemaker)(rows, servers) == LastPulseFacts(set(map(worker, "abc")), set())
    monkeypatch.setattr(last_pulses, "_ROUNDS", 1)
    assert asking(pacemaker)(rows, servers) == LastPulseFacts(
        {worker("c"), worker("b")}, {worker("a")}
    )


def test_a_java_pacemakers_pulses_were_read_already(pacemaker, asking):
    send(pacemaker, "t", completed=True)
    row = silent("t", pacemaker) | {"instance": None, "revision": None}
    assert asking(pacemaker)(table(row), {pacemaker.address}) == LastPulseFacts(set(), set())
