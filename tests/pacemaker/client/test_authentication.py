"""Authentication in the course of a client's life, over sockets."""

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from stormkeeper.errors import (
    AuthenticationError,
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
)
from stormkeeper.pacemaker.client import PacemakerClient, connection_opener
from stormkeeper.pacemaker.client.connection_opener import Dialer
from stormkeeper.pacemaker.wire.encoder import control_frame, token_frame
from stormkeeper.pacemaker.wire.messages import Control, Message, MessageType
from support.leaks import nothing_left_behind
from support.mechanisms import REMEDY, Digest, Fake, identity
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, hang, refusing
from support.waiting import DEADLINE_SECS, until


class Upper(Random):
    """Draws the upper end, so that delays are known."""

    def uniform(self, _, high):
        return high


def test_a_client_authenticates_and_reads():
    with (
        nothing_left_behind(),
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        assert client.get_pulse("/a") == b"1"
        assert client.children("/") == ["a"]
    assert peer.connections == 2


@pytest.mark.parametrize("step", [1, 2])
def test_step_without_thread_is_no_refusal_or_defect(monkeypatch, step):
    def lack(work, name):
        steps.append(work)
        if len(steps) == step:
            raise RuntimeError("can't start new thread")
        return run(work, name)

    steps, run = [], connection_opener.run_in_thread
    with (
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        monkeypatch.setattr(connection_opener, "run_in_thread", lack)
        assert client.get_pulse("/a") == b"1"
        assert client._link.defects == 0
    assert peer.connections == 4


def test_wrong_password_is_an_error_without_retries():
    with (
        ScriptedPacemaker(Digest(b"another")) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
        pytest.raises(NotAuthorizedError, match="PacemakerDigest"),
    ):
        client.get_pulse("/a")
    assert peer.connections == 2


def test_java_pacemaker_with_method_none_is_unharmed():
    java = JavaPacemaker()
    with (
        ScriptedPacemaker(java) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
        pytest.raises(NotAuthorizedError, match="wants no authentication"),
    ):
        client.get_pulse("/a")
    assert java.asked == [MessageType.EXISTS]


def test_hanging_step_delays_no_deadline_or_other_server():
    go_on = threading.Event()

    class Hanging(Fake):
        def start(self):
            go_on.wait(DEADLINE_SECS)

    with (
        ScriptedPacemaker(Digest()) as hung,
        ScriptedPacemaker(Digest()) as well,
        PacemakerClient(hung.address, identity=identity(Hanging), name="hung") as one,
        PacemakerClient(well.address, identity=identity()) as other,
    ):
        with pytest.raises(PacemakerUnavailableError):
            one.answer(one.submit(Message(MessageType.GET_PULSE, path="/a"), deadline=0.3))
        assert other.get_pulse("/a") == b"1"
        go_on.set()
        assert one.get_pulse("/a") == b"1"
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("hung")])


def test_a_defect_in_a_mechanism_is_told_and_not_waited_for():
    def broken():
        raise ZeroDivisionError

    with (
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity(broken)) as client,
        pytest.raises(NotAuthorizedError, match="ZeroDivisionError"),
    ):
        client.get_pulse("/a")


def test_wrong_password_fails_waiting_calls_only():
    waited = threading.Event()

    class Late(Digest):
        """Lets more calls come before it looks at the password."""

        def __call__(self, connection):
            waited.wait(DEADLINE_SECS)
            super().__call__(connection)

    server = Late(b"another")
    with (
        ScriptedPacemaker(server) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        futures = [
            client.submit(Message(MessageType.GET_PULSE, path=path)) for path in ("/a", "/b")
        ]
        waited.set()
        for future in futures:
            with pytest.raises(NotAuthorizedError, match=REMEDY):
                future.result(DEADLINE_SECS)
        assert peer.connections == 2
        server.password = b"response"
        assert client.get_pulse("/a") == b"1"
        assert peer.connections == 4


def test_failed_authentications_are_further_apart():
    def broken():
        raise AuthenticationError("no such user")

    with (
        ScriptedPacemaker(refusing) as peer,
        PacemakerClient(peer.address, identity=identity(broken), random=Upper()) as client,
    ):
        delays = []
        for _ in range(4):
            with pytest.raises(NotAuthorizedError, match="no such user"):
                client.get_pulse("/a")
            delays.append(client.retry_in())
        assert delays == sorted(delays)
        assert delays[-1] > 4 * delays[0]


def stalling(*frames):
    """Make a script that authenticates no further than these frames, each to a request."""

    def script(connection):
        first = connection.request()
        if first.path == "/.stormkeeper":
            connection.answer(Message(MessageType.NOT_AUTHORIZED, first.message_id))
        else:
            for frame in frames:
                connection.send(frame)
                connection.request()
        connection.wait()

    return script


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (hang, r"no answer within 0\.3 s in the authentication\)"),
        (stalling(), r"no answer within 0\.3 s in the authentication before its first token"),
        (stalling(token_frame(b"challenge")), r"no answer within 0\.3 s in the authentication\)"),
    ],
)
def test_server_that_hangs_in_it_has_the_timeout_of_a_try(script, words):
    with (
        ScriptedPacemaker(script) as peer,
        PacemakerClient(peer.address, identity=identity(), try_timeout=0.3, retries=0) as client,
    ):
        began = time.monotonic()
        with pytest.raises(PacemakerUnavailableError, match=words) as failure:
            client.get_pulse("/a")
        assert type(failure.value) is PacemakerUnavailableError
        assert 0.3 <= time.monotonic() - began < 3.0


def test_each_step_of_it_has_the_timeout_of_a_try():
    class Slow(Digest):
        def __call__(self, connection):
            answer = connection.send
            connection.send = lambda data: (time.sleep(0.35), answer(data))
            super().__call__(connection)

    with (
        ScriptedPacemaker(Slow()) as peer,
        PacemakerClient(peer.address, identity=identity(), try_timeout=1.0) as client,
    ):
        assert client.get_pulse("/a") == b"1"
    assert peer.connections == 2


def test_call_ends_at_deadline_during_authentication():
    with (
        ScriptedPacemaker(hang) as peer,
        PacemakerClient(peer.address, identity=identity(), try_timeout=20.0) as client,
    ):
        future = client.submit(Message(MessageType.GET_PULSE, path="/a"), deadline=0.3)
        with pytest.raises(PacemakerUnavailableError, match="no answer yet"):
            client.answer(future, 0.3)


def test_messages_after_the_answer_to_the_question_are_ignored():
    digest = Digest()

    def talkative(connection):
        request = connection.request()
        connection.answer(Message(MessageType.NOT_AUTHORIZED, request.message_id))
        connection.send(control_frame(Control.SASL_COMPLETE) + token_frame(b"challenge"))
        connection.wait_for_end()

    with (
        ScriptedPacemaker(talkative, digest) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        assert client.get_pulse("/a") == b"1"
    assert peer.connections == 2


def test_second_completion_comes_with_or_before_an_answer():
    class Twice(Digest):
        def __call__(self, connection):
            answer = connection.answer
            connection.answer = lambda message: (
                connection.send(control_frame(Control.SASL_COMPLETE)),
                answer(message),
            )
            super().__call__(connection)

    with (
        ScriptedPacemaker(Digest(), Twice()) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        assert client.get_pulse("/a") == b"1"
    assert peer.connections == 2


def test_failed_second_connection_asks_again(monkeypatch):
    """Another server may be there by then."""

    async def refuse_once(self, *, again=False):
        if again and not refused:
            refused.append(None)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return await connect(self, again=again)

    refused, connect = [], Dialer.connect
    monkeypatch.setattr(Dialer, "connect", refuse_once)
    with (
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        assert client.get_pulse("/a") == b"1"
    assert peer.connections == 3
    assert refused


def test_nonsense_in_it_is_the_servers_fault():
    def nonsense(connection):
        connection.request()
        connection.answer(Message(MessageType.SEND_PULSE_RESPONSE, 0))
        connection.wait_for_end()

    with (
        ScriptedPacemaker(nonsense) as peer,
        PacemakerClient(peer.address, identity=identity(), retries=1) as client,
        pytest.raises(RemoteProtocolError, match="came in the authentication"),
    ):
        client.get_pulse("/a")


def test_close_during_authentication_leaves_nothing():
    with nothing_left_behind(), ScriptedPacemaker(stalling()) as peer:
        client = PacemakerClient(peer.address, identity=identity(), try_timeout=20.0)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.get_pulse, "/a")
            until(lambda: peer.connections == 2)
            client.close()
            with pytest.raises(PacemakerUnavailableError, match="closed"):
                waiting.result(DEADLINE_SECS)
