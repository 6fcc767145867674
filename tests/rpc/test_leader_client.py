"""Finding the leader, among real servers that say who it is."""

import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from stormkeeper import conf
from stormkeeper.conf.address import Address
from stormkeeper.errors import (
    ConfigError,
    LeaderNotFoundError,
    LocalProtocolError,
    RpcOutcomeUnknownError,
    RpcRefusedError,
    RpcUnavailableError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.rpc import leader_client
from stormkeeper.rpc.leader_client import LeaderClient
from stormkeeper.thrift.nimbus import AuthorizationException, Nimbus, NotAliveException
from stormkeeper.thrift.records import NimbusSummary
from support.rpc import scripted, served
from support.waiting import DEADLINE_SECS, until


class Member:
    """A Nimbus that says who leads, and counts what it is asked; `cluster` starts them."""

    def __init__(self):
        self.leader = None
        self.calls = []

    def __getattr__(self, name):
        if name not in Nimbus.methods:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            return "{}" if name == "getNimbusConf" else None

        return call

    def getLeader(self):  # noqa: N802
        self.calls.append(("getLeader",))
        if isinstance(self.leader, Exception):
            raise self.leader
        return self.leader


@pytest.fixture
def cluster():
    """Start so many Nimbuses that know no leader; return them."""
    with ExitStack() as stack:

        def start(count):
            members = [Member() for _ in range(count)]
            for member in members:
                member.server, (_, member.port) = stack.enter_context(
                    served(member, service=Nimbus)
                )
                member.seed = f"127.0.0.1:{member.port}"
            return members

        yield start


def leads(port, host="127.0.0.1"):
    return NimbusSummary(host, port, 1, True, "2.8.0")


def client_of(seeds, **options):
    # Where it matters who is asked, nobody is as one before it is slow.
    patient = {"timeout": DEADLINE_SECS, "head_start": DEADLINE_SECS}
    settings = {"max_frame": 1 << 20, "rounds": 0, **patient, **options}
    return LeaderClient(seeds, 6627, **settings)


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_connection_to_a_leading_seed_is_kept(cluster):
    [member] = cluster(1)
    member.leader = leads(member.port)
    with client_of([member.seed]) as client:
        assert client.address is None
        assert client.nimbus.getNimbusConf() == "{}"
        assert client.nimbus.getNimbusConf() == "{}"
        assert client.address == Address("127.0.0.1", member.port)
    assert member.calls == [("getLeader",), ("getNimbusConf",), ("getNimbusConf",)]
    assert member.server.counts.accepted == 1


def test_another_leader_is_dialled(cluster):
    first, second = cluster(2)
    first.leader = second.leader = leads(second.port)
    with client_of([first.seed, second.seed]) as client:
        client.nimbus.killTopology("wc")
        assert client.address == Address("127.0.0.1", second.port)
    assert first.calls == [("getLeader",)]
    assert second.calls == [("killTopology", "wc")]
    until(lambda: not first.server.open)


def test_the_same_machine_by_another_name_is_dialled(cluster):
    [member] = cluster(1)
    member.leader = leads(member.port, "localhost")
    with client_of([member.seed]) as client:
        client.nimbus.getNimbusConf()
        assert str(client.address) == f"localhost:{member.port}"
    assert member.server.counts.accepted == 2


@pytest.mark.parametrize(
    "fault",
    [
        None,
        StateError("nobody leads"),
        AuthorizationException("getLeader is not authorized"),
        "nobody listens there",
    ],
)
def test_next_seed_is_asked_after_any_answer(cluster, fault):
    bad, good = cluster(2)
    bad.leader = leads(closed_port()) if fault == "nobody listens there" else fault
    good.leader = leads(good.port)
    with client_of([f"127.0.0.1:{closed_port()}", bad.seed, good.seed]) as client:
        client.nimbus.getNimbusConf()
        assert client.address.port == good.port
    assert bad.calls == [("getLeader",)]


@contextmanager
def silent():
    """A port that takes connections and says nothing, like one whose machine is lost."""
    over = threading.Event()
    with scripted(lambda _: over.wait(2 * DEADLINE_SECS)) as (_, port):
        yield f"127.0.0.1:{port}"
        over.set()


def test_a_seed_that_says_nothing_is_not_waited_for(cluster, monkeypatch):
    monkeypatch.setattr(leader_client, "_SEED_SECONDS", 2 * DEADLINE_SECS)
    [good] = cluster(1)
    good.leader = leads(good.port)
    with silent() as seed, client_of([seed, good.seed], head_start=0.01) as client:
        assert client.nimbus.getNimbusConf() == "{}"
        assert client.address.port == good.port


def test_second_answering_seed_is_closed(cluster):
    late, good = cluster(2)
    late.leader = good.leader = leads(good.port)
    may_answer, answer = threading.Event(), late.getLeader

    def slowly():
        may_answer.wait(DEADLINE_SECS)
        return answer()

    late.getLeader = slowly
    with client_of([late.seed, good.seed], head_start=0.01) as client:
        client.nimbus.getNimbusConf()
        may_answer.set()
        until(lambda: ("getLeader",) in late.calls and not late.server.open)
        until(lambda: good.server.open == 1)
        client.nimbus.getNimbusConf()


def test_seeds_that_say_nothing_are_waited_for_together(monkeypatch):
    monkeypatch.setattr(leader_client, "_SEED_SECONDS", 0.5)
    with (
        silent() as one,
        silent() as other,
        client_of([one, other], head_start=0.01, rounds=1, pause=0.0) as client,
        pytest.raises(LeaderNotFoundError) as error,
    ):
        client.nimbus.getNimbusConf()
    for seed in (one, other):
        assert f"{seed}: no answer in 0 s: a Nimbus that waits for ZooKeeper or" in str(error.value)


def test_how_long_a_search_takes_at_most():
    seeds = ["a", "b", "c"]
    client = client_of(seeds, rounds=2, pause=3.0, longest_pause=3.001, head_start=0.5)
    assert client.search_secs == pytest.approx(3 * (2 * 0.5 + 5.0) + 3.001 + 3.001)


def test_bytes_that_are_no_answer_are_passed_over(cluster):
    [good] = cluster(1)
    good.leader = leads(good.port)
    with (
        scripted(lambda connected: connected.sendall(b"220 smtp.example.org\r\n")) as (_, port),
        client_of([f"127.0.0.1:{port}", good.seed]) as client,
    ):
        client.nimbus.getNimbusConf()
        assert client.address.port == good.port


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"SSH-2.0-x\r\n", "what listens there is no Nimbus"),
        (b"HTTP/1.1 400 Bad Request\r\n", "what listens there is no Nimbus"),
        (b"", "no answer in 5 s: a Nimbus that waits for ZooKeeper or is busy, or no Nimbus"),
    ],
)
def test_a_seed_that_is_something_else_is_said_in_a_few_words(answer, says):
    def reply(connected):
        connected.recv(1_000)
        connected.sendall(answer)

    with (
        scripted(reply) as (_, port),
        client_of([f"127.0.0.1:{port}"]) as client,
        pytest.raises(LeaderNotFoundError) as error,
    ):
        client.nimbus.getClusterInfo()
    assert str(error.value).endswith(f"config nimbus.seeds? (127.0.0.1:{port}: {says})")


def test_nimbuses_without_zookeeper_do_not_count_as_electing(cluster):
    one, other = cluster(2)
    one.leader = other.leader = StateUnavailableError("see that a majority runs")
    dead = f"127.0.0.1:{closed_port()}"
    seeds = [one.seed, dead, other.seed]
    with client_of(seeds) as client, pytest.raises(LeaderNotFoundError) as error:
        client.nimbus.getClusterInfo()
    assert str(error.value) == (
        f"Nimbus at {one.seed}, {other.seed} does not reach ZooKeeper: see that a majority runs;"
        f" {dead}: connection refused: nothing listens there"
    )
    assert not error.value.is_electing


def test_no_leader_is_said_in_storms_words_and_why(cluster):
    [member] = cluster(1)
    dead = f"127.0.0.1:{closed_port()}"
    with client_of([dead, member.seed]) as client, pytest.raises(LeaderNotFoundError) as error:
        client.nimbus.getClusterInfo()
    text = str(error.value)
    assert text.startswith(
        f"Could not find leader nimbus from seed hosts [{dead}, {member.seed}]. Did you specify a"
        " valid list of nimbus hosts for config nimbus.seeds? ("
    )
    assert f"{dead}: connection refused: nothing listens there" in text
    assert f"{member.seed}: getLeader: answered without a result" in text


def test_seeds_are_asked_until_one_knows_the_leader(cluster):
    [member] = cluster(1)
    pauses = []

    def elect(pause):
        pauses.append(pause)
        if len(pauses) == 3:
            member.leader = leads(member.port)

    options = {"rounds": 5, "pause": 2.0, "longest_pause": 2.003, "sleep": elect}
    with client_of([member.seed], **options) as client:
        client.nimbus.getNimbusConf()
    assert pauses == [2.001, 2.002, 2.003]


def test_the_rounds_have_an_end(cluster):
    [member] = cluster(1)
    pauses = []
    with client_of([member.seed], rounds=2, pause=0.0, sleep=pauses.append) as client:
        with pytest.raises(LeaderNotFoundError):
            client.find(time.monotonic() + DEADLINE_SECS)
        assert len(pauses) == 2
        assert len(member.calls) == 3


def test_any_number_of_rounds_is_one(cluster):
    [member] = cluster(1)
    pauses = []
    options = {"rounds": 1_050, "longest_pause": 0.0, "sleep": pauses.append}
    with client_of([member.seed], **options) as client, pytest.raises(LeaderNotFoundError):
        client.find(time.monotonic() + DEADLINE_SECS)
    assert len(pauses) == 1_050


def test_the_search_ends_at_its_deadline(cluster):
    [member] = cluster(1)
    pauses = []
    options = {"rounds": 1_000, "pause": 3600.0, "longest_pause": 3600.0, "sleep": pauses.append}
    with client_of([member.seed], **options) as client:
        with pytest.raises(LeaderNotFoundError):
            client.nimbus.getNimbusConf()
        assert pauses == []
        with pytest.raises(LeaderNotFoundError, match="there was no time to ask"):
            client.call("getNimbusConf", timeout=0)


def test_a_leader_that_ended_is_looked_for_anew(cluster):
    first, second = cluster(2)
    first.leader = leads(first.port)
    with client_of([first.seed, second.seed]) as client:
        client.nimbus.getNimbusConf()
        second.leader = leads(second.port)
        first.server.stop(0)
        client.nimbus.getNimbusConf()
        assert client.address.port == second.port


def test_a_call_of_unknown_outcome_is_not_made_again(cluster):
    first, second = cluster(2)
    first.leader, second.leader = leads(first.port), leads(second.port)

    cuts = []

    def cut(name):
        cuts.append(name)
        for channel in list(first.server._channels):
            first.server.loop.call_soon_threadsafe(channel.abort, "test")

    first.killTopology = cut
    with client_of([first.seed, second.seed]) as client:
        client.nimbus.getNimbusConf()
        with pytest.raises(RpcOutcomeUnknownError):
            client.nimbus.killTopology("wc")
        assert (cuts, second.calls) == (["wc"], [])
        assert client.nimbus.getNimbusConf() == "{}"


def test_a_call_that_had_no_turn_in_time_says_so(cluster):
    [member] = cluster(1)
    may_end = threading.Event()
    member.leader = leads(member.port)
    member.killTopology = lambda _: member.calls.append("kill") or may_end.wait(DEADLINE_SECS)
    with client_of([member.seed]) as client:
        client.nimbus.getNimbusConf()
        killing = threading.Thread(target=client.nimbus.killTopology, args=["wc"])
        killing.start()
        until(lambda: "kill" in member.calls)
        with pytest.raises(RpcUnavailableError, match="an earlier call is still in progress"):
            client.call("getNimbusConf", timeout=0.1)
        may_end.set()
        killing.join(DEADLINE_SECS)
        assert client.nimbus.getNimbusConf() == "{}"


def test_more_than_a_message_holds_changes_nothing(cluster):
    [member] = cluster(1)
    member.leader = leads(member.port)
    with client_of([member.seed], max_frame=1_000) as client:
        client.nimbus.getNimbusConf()
        with pytest.raises(LocalProtocolError):
            client.nimbus.uploadChunk("f", b"x" * 1_000)
        client.nimbus.getNimbusConf()
    assert member.calls.count(("getLeader",)) == 1


def test_refused_call_searches_the_leader_again(cluster):
    first, second = cluster(2)

    def refuse(_):
        raise StateError("not the leader")

    first.leader = second.leader = leads(first.port)
    first.killTopology = refuse
    with client_of([first.seed, second.seed]) as client:
        with pytest.raises(RpcRefusedError, match="Internal error processing killTopology"):
            client.nimbus.killTopology("wc")
        first.leader = second.leader = leads(second.port)
        client.nimbus.killTopology("wc")
        assert second.calls == [("killTopology", "wc")]


def test_a_declared_exception_changes_nothing(cluster):
    [member] = cluster(1)

    def refuse(name):
        raise NotAliveException(f"{name} is not alive")

    member.leader, member.killTopology = leads(member.port), refuse
    with client_of([member.seed]) as client:
        for _ in range(2):
            with pytest.raises(NotAliveException, match="wc is not alive"):
                client.nimbus.killTopology("wc")
    assert member.calls == [("getLeader",)]


def test_threads_search_the_leader_once(cluster):
    [member] = cluster(1)
    member.leader = leads(member.port)
    with client_of([member.seed]) as client:
        threads = [threading.Thread(target=client.nimbus.getNimbusConf) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECS)
    assert member.calls.count(("getLeader",)) == 1
    assert len(member.calls) == 9


def test_client_is_made_of_a_configuration(cluster):
    [member] = cluster(1)
    member.leader = leads(member.port)
    settings = conf.defaults().with_values(
        {"nimbus.seeds": ["127.0.0.1"], "nimbus.thrift.port": member.port}
    )
    with LeaderClient.from_conf(settings) as client:
        assert client.nimbus.getNimbusConf() == "{}"


def test_a_seed_that_is_no_address_is_refused():
    with pytest.raises(ConfigError, match="a:b:c"):
        client_of(["a:b:c"])
