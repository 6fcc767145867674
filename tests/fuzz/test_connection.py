"""Whatever bytes a client sends, in whatever pieces: whole answers, or a fault that is its own."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.mutations import EXAMPLES, streams
from stormkeeper.pacemaker.server.channels import RequestStream
from stormkeeper.pacemaker.server.client_session import Policy
from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.messages import DEFAULT_MAX_SIZE
from support.sessions import POLICY, new_sessions

SECRET = b"only for those who may read"
KEPT = {b"/workerbeats/a-1-1/n-6700": SECRET, b"/workerbeats/b-1-1/n-6700": SECRET}
OPEN, CLOSED = Policy(), POLICY
SEALED = Policy("SCRAM", POLICY.mechanism, is_authorised=bool, authenticates_writers=True)


def converse(policy: Policy, pieces: list[bytes]):  # type: ignore[no-untyped-def]
    """Return the payloads of all answers, the stream, and the store."""
    sessions, store, _ = new_sessions(policy)
    for path, details in KEPT.items():
        store.put(path, details)
    stream = RequestStream(sessions.open("10.0.0.1", 4711), DEFAULT_MAX_SIZE)
    splitter, answers = PacemakerFrameSplitter(), []
    for piece in pieces:
        stream.receive(piece)
        while True:
            said = stream.next_answers(max_bytes=100)
            answers += splitter.feed(said)
            if stream.ending is not None or not stream.has_waiting:
                break
    assert not splitter.has_partial
    return answers, stream, store


@settings(max_examples=EXAMPLES, deadline=None)
@given(streams(), st.sampled_from([OPEN, CLOSED, SEALED]))
def test_whole_answers_or_a_fault(pieces: list[bytes], policy: Policy) -> None:
    answers, stream, store = converse(policy, pieces)
    for answer in answers:
        decode(answer)
    if stream.ending is not None:
        cause, reason = stream.ending
        assert cause
        assert reason
        stream.receive(pieces[0])
        assert stream.next_answers() == b""
    # What is listed is what is held, whatever has been sent and deleted.
    listed = {pulse.path for pulse in store.pulses(b"/")}
    assert len(listed) == store.index.keys


@settings(max_examples=EXAMPLES, deadline=None)
@given(streams(), st.sampled_from([CLOSED, SEALED]))
def test_nobody_reads_who_has_not_authenticated(pieces: list[bytes], policy: Policy) -> None:
    answers, _, store = converse(policy, pieces)
    for answer in answers:
        assert SECRET not in answer
        assert b"n-6700" not in answer
        assert store.instance.encode() not in answer
    if policy is SEALED:
        assert {path: store.get(path) for path in KEPT} == KEPT
        assert store.index.keys == len(KEPT)
