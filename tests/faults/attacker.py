"""A client that misbehaves, and what it sees of the server's answer."""

import contextlib
import socket
import ssl
import time
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Final

from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.messages import MessageType
from stormkeeper.sasl import Mechanism

#: Longest that a server may take to end a connection that is owed an end, in seconds. Its own
#: time-outs are set below that, see `SERVER_TIMEOUT_SECS`.
PATIENCE: Final = 60.0

#: What the servers under abuse allow for a frame, a handshake and a reading, in seconds.
SERVER_TIMEOUT_SECS: Final = 0.5


class Verdict(Enum):
    """What came of it for the one who misbehaved."""

    CLOSED = "the connection was closed"
    REFUSED = "NOT_AUTHORIZED"
    ANSWERED = "an answer"
    HUNG = "nothing at all"


class Attacker:
    """Opens connections to a server of one mode and does what it should not.

    Parameters
    ----------
    host, port
        The server.
    tls
        What to wrap a connection in, for a server with TLS.
    mechanism
        Makes the client half of the server's authentication, with the password or, with Kerberos,
        as the principal given; for None, with the right one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        mechanism: Callable[[str | None], Mechanism] | None = None,
        secret_path: str,
        connections_per_address: int,
        store_bytes: int,
    ) -> None:
        self.patience = PATIENCE
        self.secret_path = secret_path
        self.connections_per_address = connections_per_address
        self.store_bytes = store_bytes
        self._address = (host, port)
        self._tls = tls
        self._mechanism = mechanism

    def connect(self, *, raw: bool = False) -> socket.socket:
        """Connect; over TLS if the server speaks it, unless `raw`."""
        peer = socket.create_connection(self._address, PATIENCE)
        if self._tls is None or raw:
            return peer
        return self._tls.wrap_socket(peer, server_hostname="localhost")

    def say(self, data: bytes, *, raw: bool = False, keep_reading: bool = False) -> Verdict:
        """Send `data` on a new connection and see what comes of it.

        With `keep_reading` answers do not count: only how it ends does.
        """
        with self.connect(raw=raw) as peer:
            with contextlib.suppress(OSError):  # it may be closed before all of it is sent
                peer.sendall(data)
            return self.outcome(peer, keep_reading=keep_reading)

    def outcome(self, peer: socket.socket, *, keep_reading: bool = False) -> Verdict:
        """Wait for an answer or for the end of the connection."""
        splitter = PacemakerFrameSplitter()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            peer.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                data = peer.recv(1 << 18)
            except TimeoutError:
                break
            except OSError:  # reset, or TLS that was broken off
                return Verdict.CLOSED
            if not data:
                return Verdict.CLOSED
            if not keep_reading:
                payloads = splitter.feed(data)
                if payloads:
                    return self.judge(payloads[0])
        return Verdict.HUNG

    def ask(self, peer: socket.socket, data: bytes) -> bytes | None:
        """Send `data` and return the payload of the next frame; None at the end of the stream."""
        splitter = PacemakerFrameSplitter()
        peer.settimeout(PATIENCE)
        try:
            peer.sendall(data)
            while True:
                received = peer.recv(1 << 18)
                if not received:
                    return None
                payloads = splitter.feed(received)
                if payloads:
                    assert len(payloads) == 1
                    return payloads[0]
        except TimeoutError:
            raise
        except OSError:
            return None

    def judge(self, payload: bytes | None) -> Verdict:
        """Say what an answer means."""
        if payload is None:
            return Verdict.CLOSED
        if decode(payload).type == MessageType.NOT_AUTHORIZED:
            return Verdict.REFUSED
        return Verdict.ANSWERED

    def ended(self, peer: socket.socket, wait_secs: float) -> bool:
        """Whether the server closes within `wait_secs`."""
        peer.settimeout(wait_secs)
        try:
            return not peer.recv(1 << 16)
        except TimeoutError:
            return False
        except OSError:
            return True

    def shut(self, peer: socket.socket) -> None:
        """End our direction, and only ours."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(peer, socket.SHUT_WR)

    def rest(self) -> None:
        """Wait until the server has lost its patience with a client that does nothing."""
        time.sleep(SERVER_TIMEOUT_SECS + 1.5)

    # --- authentication --------------------------------------------------------------------------

    def authenticate(self, who: str | None = None) -> Verdict:
        """Go through the server's authentication; CLOSED if it ends the connection."""
        client = self._client(who)
        first = client.start()
        with self.connect() as peer:
            return self._converse(peer, first, client.step)

    def replay(self) -> Verdict:
        """Authenticate, and then again on another connection with the same answers."""
        client = self._client(None)
        first = client.start()
        said: list[bytes] = []

        def honestly(token: bytes) -> bytes | None:
            answer = client.step(token)
            if answer is not None:
                said.append(answer)
            return answer

        with self.connect() as peer:
            assert self._converse(peer, first, honestly) is Verdict.ANSWERED
        script = iter(said)
        with self.connect() as peer:
            return self._converse(peer, first, lambda _: next(script, None))

    def old_tls(self) -> Verdict:
        """Try TLS 1.1."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with self.connect(raw=True) as peer:
            try:
                context.wrap_socket(peer)
            except OSError:
                return Verdict.CLOSED
        return Verdict.ANSWERED

    def _client(self, who: str | None) -> Mechanism:
        assert self._mechanism is not None
        return self._mechanism(who)

    def _converse(
        self, peer: socket.socket, first: bytes | None, step: Callable[[bytes], bytes | None]
    ) -> Verdict:
        """Send the first token, or ask for it, and answer each with `step`.

        Returns
        -------
        Verdict
            ANSWERED if the server accepts that.
        """
        # Here, as most of this module needs no more of the wire than bytes.
        from stormkeeper.errors import AuthenticationError  # noqa: PLC0415
        from stormkeeper.pacemaker.wire.decoder import (  # noqa: PLC0415
            read_control,
            read_token,
        )
        from stormkeeper.pacemaker.wire.encoder import (  # noqa: PLC0415
            control_frame,
            token_frame,
        )
        from stormkeeper.pacemaker.wire.messages import (  # noqa: PLC0415
            Control,
        )

        splitter = PacemakerFrameSplitter()
        peer.settimeout(PATIENCE)
        try:
            peer.sendall(
                control_frame(Control.SASL_TOKEN_REQUEST) if first is None else token_frame(first)
            )
            while True:
                received = peer.recv(1 << 16)
                if not received:
                    return Verdict.CLOSED
                for payload in splitter.feed(received):
                    answer = decode(payload)
                    if answer.type == MessageType.CONTROL_MESSAGE:
                        assert read_control(answer) is Control.SASL_COMPLETE
                        return Verdict.ANSWERED
                    try:
                        token = step(read_token(answer))
                    except AuthenticationError:
                        token = b"a client would end it here"
                    if token is not None:
                        peer.sendall(token_frame(token))
        except TimeoutError:
            return Verdict.HUNG
        except OSError:
            return Verdict.CLOSED
