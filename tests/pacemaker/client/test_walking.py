"""The walk through a Java Pacemaker, question by question."""

from stormkeeper.pacemaker.client.walking import Walk
from stormkeeper.pacemaker.wire import Message, MessageType, Pulse
from support.scripted_pacemaker import answered


def walked(path, reply):
    """Walk to the end; return the pulses, and the questions of each round."""
    walk, found, rounds = Walk(path), [], []
    while questions := walk.questions():
        rounds.append([(question.type, question.path) for question in questions])
        found += walk.answered([reply(question) for question in questions])
        assert len(rounds) < 1000
    return found, rounds


def java(store):
    return lambda question: answered(store, question)


def test_every_pulse_is_found_and_none_is_asked_for_what_lies_below_it():
    store = {f"/workerbeats/wc-{n % 3}/{n}": b"%d" % n for n in range(9)}
    found, rounds = walked("/workerbeats", java(store))
    assert dict(found) == store
    asked = [path for questions in rounds for kind, path in questions if kind == 8]
    assert sorted(asked) == ["/workerbeats", *(f"/workerbeats/wc-{n}" for n in range(3))]


def test_what_lies_below_the_path_is_found_though_it_is_a_pulse_itself():
    store = {"/a": b"1", "/a/b": b"2", "/ab": b"3"}
    assert dict(walked("/a", java(store))[0]) == {"/a": b"1", "/a/b": b"2"}


def test_nothing_is_asked_beyond_a_full_connection_at_once():
    store = {f"/w/{number}": b"%d" % number for number in range(250)}
    found, rounds = walked("/w", java(store))
    assert dict(found) == store
    assert max(map(len, rounds)) == 100
    assert sum(map(len, rounds)) == 252


def test_names_that_are_listed_by_mistake_lead_nowhere():
    def reply(question):
        answer = answered({"/w/wc-1-1700000000/b": b"2"}, question)
        if question.path == "/w/wc-1-17" and answer.nodes is not None:
            answer.nodes = ["00000000", ""]
        elif question.path == "/w" and answer.nodes is not None:
            answer.nodes.append("wc-1-17")
        return answer

    assert walked("/w", reply)[0] == [Pulse("/w/wc-1-1700000000/b", b"2")]


def test_a_walk_ends_though_every_path_lists_another():
    def reply(question):
        if question.type == MessageType.GET_PULSE:
            return Message(11, 0, pulse=Pulse(question.path, None))
        return Message(9, 0, nodes=["again", "again"])

    found, rounds = walked("/a", reply)
    assert found == []
    assert len(rounds) == 2 * 16 + 1


def test_nobody_looks_below_a_name_that_would_end_the_server():
    store = {"/w/wc-1/a": b"1", "/w/wc(1/a": b"2", "/w/x": b"3"}
    found, rounds = walked("/w", java(store))
    assert dict(found) == {"/w/wc-1/a": b"1", "/w/x": b"3"}
    assert all("(" not in path for questions in rounds for kind, path in questions if kind == 8)
