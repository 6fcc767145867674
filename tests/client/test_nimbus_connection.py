"""The connection to the leading Nimbus: found soon or not at all, and said in words."""

import socket
import time

import pytest

from stormkeeper import conf
from stormkeeper.client import nimbus_connection
from stormkeeper.client.nimbus_connection import connect
from stormkeeper.errors import (
    LeaderNotFoundError,
    NotAliveError,
    RefusedError,
    RpcRefusedError,
    StateUnavailableError,
)
from stormkeeper.thrift.nimbus import (
    AlreadyAliveException,
    AuthorizationException,
    KeyAlreadyExistsException,
    KeyNotFoundException,
    NotAliveException,
    SettableBlobMeta,
    StormTopology,
)
from support.small_nimbus import SmallNimbus


def test_it_calls_the_leader(cluster):
    nimbus = SmallNimbus()
    nimbus.getNimbusConf = lambda: "{}"
    with connect(cluster(nimbus)) as connected:
        assert connected.nimbus.getNimbusConf() == "{}"


def test_nobody_there_is_said_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seed = f"127.0.0.1:{listener.getsockname()[1]}"
    settings = conf.defaults().with_values({"nimbus.seeds": [seed]})
    with pytest.raises(LeaderNotFoundError) as error, connect(settings, finding_secs=0.2):
        pass
    text = str(error.value)
    assert text.startswith(f"Could not find leader nimbus from seed hosts [{seed}].")
    assert "connection refused: nothing listens there" in text
    assert text.endswith("name another with -c nimbus.seeds=HOST or HOST:PORT")


def test_without_zookeeper_no_other_nimbus_is_advised(cluster):
    nimbus = SmallNimbus()

    def without_zookeeper():
        raise StateUnavailableError("see that a majority runs")

    nimbus.getLeader = without_zookeeper
    with (
        pytest.raises(LeaderNotFoundError) as error,
        connect(cluster(nimbus), finding_secs=0.2),
    ):
        pass
    assert str(error.value).endswith(" does not reach ZooKeeper: see that a majority runs")


def test_what_is_set_bounds_calls_and_the_search(cluster, monkeypatch):
    said = []
    monkeypatch.setattr(
        nimbus_connection.LeaderClient, "call", lambda *_, timeout: said.append(timeout) or "{}"
    )
    monkeypatch.setattr(
        nimbus_connection.LeaderClient,
        "find",
        lambda _, deadline: said.append(round(deadline - time.monotonic())),
    )
    settings = cluster(SmallNimbus())
    with connect(settings) as connected:
        connected.call("getNimbusConf", timeout=45.0)
        connected.call("getNimbusConf")
    assert said == [15, 15, 45.0, 15, 30.0]
    said.clear()
    changed = {"storm.thrift.socket.timeout.ms": 90_000, "storm.nimbus.retry.times": 1}
    with connect(settings.with_values(changed)) as connected:
        connected.call("getNimbusConf", timeout=45.0)
    assert said == [12, 12, 90.0]  # two rounds of 5 s, and a pause of 2 s


def test_an_election_is_waited_for(cluster):
    nimbus = SmallNimbus()
    settings = cluster(nimbus)
    leader, nimbus.leader = nimbus.leader, None
    said = []

    def say(text):
        said.append(text)
        nimbus.leader = leader

    nimbus.getNimbusConf = lambda: "{}"
    with connect(settings, finding_secs=0.2, say=say) as connected:
        assert connected.nimbus.getNimbusConf() == "{}"
    assert said == ["no Nimbus leads at present: waiting for an election"]


def test_an_election_without_an_end_is_not(cluster, monkeypatch):
    monkeypatch.setattr(nimbus_connection, "_ELECTION_SECS", 0.1)
    nimbus = SmallNimbus()
    settings = cluster(nimbus).with_values({"storm.zookeeper.session.timeout": 100})
    nimbus.leader = None
    with pytest.raises(LeaderNotFoundError), connect(settings, finding_secs=0.2):
        pass


@pytest.mark.parametrize(
    ("call", "raised", "kind", "said"),
    [
        (
            ("killTopology", "wc"),
            NotAliveException("wc is not alive"),
            NotAliveError,
            "there is no topology wc; `storm list`",
        ),
        (
            ("submitTopology", "wc", None, "{}", StormTopology({}, {}, {})),
            AlreadyAliveException("wc is already alive"),
            RefusedError,
            "wc is already alive$",
        ),
        (
            ("activate", "wc"),
            AuthorizationException("activate is not authorized"),
            RefusedError,
            "activate is not authorized$",
        ),
        (
            ("getBlobMeta", "jar"),
            KeyNotFoundException("jar"),
            RefusedError,
            "there is no blob jar; see",
        ),
        (
            ("beginCreateBlob", "jar", SettableBlobMeta([])),
            KeyAlreadyExistsException("jar"),
            RefusedError,
            "there is a blob jar already$",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_nimbus_declares_is_an_error_of_ours(cluster, call, raised, kind, said):
    nimbus = SmallNimbus()

    def refuse(*_):
        raise raised

    setattr(nimbus, call[0], refuse)
    with connect(cluster(nimbus)) as connected, pytest.raises(kind, match=said):
        connected.call(*call)


def test_who_was_refused_by_a_former_leader_asks_the_next(cluster):
    former, next_one = SmallNimbus(), SmallNimbus()
    next_one.downloadChunk = lambda _: b"here"
    settings = cluster(former, next_one)
    with connect(settings) as connected:
        former.leader = next_one.leader
        assert connected.nimbus.downloadChunk("it") == b"here"
    assert former.calls == [("downloadChunk",)]


def test_what_a_leader_could_not_do_is_asked_once(cluster):
    nimbus = SmallNimbus()
    said = "Internal error processing downloadChunk"
    with connect(cluster(nimbus)) as connected, pytest.raises(RpcRefusedError, match=said):
        connected.nimbus.downloadChunk("it")
    assert nimbus.calls == [("downloadChunk",)]
