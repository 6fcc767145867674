"""Who a client is, told to servers that are scripted, in all the ways that can end."""

import threading

import pytest

from stormkeeper.errors import StateAuthenticationError, StateUnavailableError
from stormkeeper.sasl.credentials import UserPassword
from stormkeeper.sasl.digest_md5 import DigestClient, DigestServer
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.zookeeper import requests
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings, Security
from support.scripted_zookeeper import SASL, ScriptedZooKeeper
from support.stores import limit_calls
from support.waiting import DEADLINE_SECS, until
from support.zookeeper_requests import TIMES, reads, values

CONNECTED, SUSPENDED, LOST = ConnectionState

REALM, URI = "zk-sasl-md5", "zookeeper/zk-sasl-md5"


def greeted_and_served(peer):
    """Takes every digest."""
    peer.greet()
    peer.send(peer.answer(peer.next()))
    peer.serve()


class TestAuthentication:
    """The scripted server is the project's own half of SASL, told as ZooKeeper tells it."""

    def security(self, password="secret"):
        user = UserPassword("nimbus", password)
        return Security(
            mechanism=lambda: DigestClient(user, realm=REALM, digest_uri=URI),
            identities=("sasl:nimbus",),
        )

    def authenticate(self, peer, on_proof=lambda: None):
        """Play ZooKeeper's half; a wrong password raises."""
        peer.greet()
        server = DigestServer({"nimbus": "secret"}.get, realm=REALM, digest_uri=URI)
        asked = peer.next()
        assert (asked.type, asked.token) == (SASL, b"")
        peer.send(peer.token(asked, server.start()))
        asked = peer.next()
        assert asked.type == SASL
        try:
            proof = server.step(asked.token)
        except Exception:
            # As ZooKeeper: it says so, and hangs up.
            peer.send(peer.answer(asked, error=-115))
            return
        on_proof()
        peer.send(peer.token(asked, proof))
        peer.serve()

    def test_nothing_is_sent_and_nothing_told_before_its_end(self):
        states = []

        def script(peer):
            self.authenticate(peer, lambda: states.append(connection.state))

        with ScriptedZooKeeper(script) as server:
            connection = EnsembleConnection(
                EnsembleSettings(servers=(server.address,), **TIMES, security=self.security()),
                states.append,
            )
            connection.start()
            deadline = connection.deadline()
            assert connection.call(requests.get("/a"), deadline)[0] == b"/a"
            assert states == [LOST, CONNECTED]
            assert [asked.type for asked in server.peers[0].asked] == [SASL, SASL, 4]
            connection.close()

    def test_a_wrong_password(self, connection_to):
        with (
            ScriptedZooKeeper(self.authenticate) as server,
            pytest.raises(StateAuthenticationError, match=r"\(sasl:nimbus\).*password"),
        ):
            connection_to(server.address, security=self.security("wrong"))

    def test_a_server_without_sasl(self, connection_to):
        def script(peer):
            peer.greet()
            peer.send(peer.token(peer.next(), None))

        with (
            ScriptedZooKeeper(script) as server,
            pytest.raises(StateAuthenticationError, match="no SASL"),
        ):
            connection_to(server.address, security=self.security())

    def test_a_server_that_does_not_know_the_password(self, connection_to):
        def script(peer):
            peer.greet()
            asked = peer.next()
            server = DigestServer({"nimbus": "secret"}.get, realm=REALM, digest_uri=URI)
            peer.send(peer.token(asked, server.start()))
            peer.send(peer.token(peer.next(), b"rspauth=" + b"0" * 32))

        with (
            ScriptedZooKeeper(script) as server,
            pytest.raises(StateAuthenticationError, match="rspauth is wrong"),
        ):
            connection_to(server.address, security=self.security())

    def test_a_broken_connection_is_no_refusal(self, connection_to):
        def broken(peer):
            peer.greet()
            peer.next()

        with ScriptedZooKeeper(broken, self.authenticate) as server:
            assert connection_to(server.address, security=self.security()).state is CONNECTED
            assert len(server.peers) == 2

    def test_a_server_that_hangs_up_on_everyone(self, connection_to):
        def broken(peer):
            peer.greet()
            peer.next()

        with (
            ScriptedZooKeeper(broken) as server,
            pytest.raises(StateUnavailableError, match="hung up during SASL"),
        ):
            connection_to(server.address, security=self.security(), call_timeout_secs=2.0)

    def test_a_digest_that_is_refused(self, connection_to):
        def script(peer):
            peer.greet()
            asked = peer.next()
            peer.send(peer.answer(asked, error=-115))

        security = Security(digests=(("digest", "u:p"),), identities=("digest:u:x",))
        with (
            ScriptedZooKeeper(script) as server,
            pytest.raises(StateAuthenticationError, match=r"\(digest:u:x\)"),
        ):
            connection_to(server.address, security=security)

    def test_an_answer_to_another_request_breaks_the_connection(self, connection_to):
        def confused(peer):
            peer.greet()
            peer.send(peer.answer(peer.next()._replace(xid=77)))
            peer.next()

        security = Security(digests=(("digest", "u:p"),))
        with ScriptedZooKeeper(confused, greeted_and_served) as server:
            connection = connection_to(server.address, security=security)
            assert connection.state is CONNECTED
            assert len(server.peers) == 2

    def test_what_proves_who_we_are_is_not_logged(self, connection_to, caplog):
        caplog.set_level(1)
        caplog.set_level(1, "stormkeeper.state.zookeeper.ensemble_connection.kazoo")
        security = Security(digests=(("digest", "u:HUSH"),), identities=("digest:u:x",))
        with ScriptedZooKeeper(greeted_and_served) as server:
            connection_to(server.address, security=security)
        assert "Auth(***)" in caplog.text
        assert "HUSH" not in caplog.text
        assert "HUSH" not in repr(security)

    def test_one_that_is_refused_later_is_tried_again_after_a_pause(self, connection_to):
        passwords = iter(["secret", "wrong", "secret"])
        user = [UserPassword("nimbus", "secret")]

        def mechanism():
            user[0] = UserPassword("nimbus", next(passwords))
            return DigestClient(user[0], realm=REALM, digest_uri=URI)

        drop = threading.Event()

        def first(peer):
            threading.Thread(target=lambda: (drop.wait(DEADLINE_SECS), peer.hang_up())).start()
            self.authenticate(peer)

        security = Security(mechanism=mechanism, identities=("sasl:nimbus",))
        with ScriptedZooKeeper(first, self.authenticate) as server:
            connection = connection_to(server.address, security=security, retry_ceiling_secs=0.2)
            limit_calls(connection, 1.0)
            drop.set()
            until(lambda: connection._refused is not None)
            until(lambda: not connection._handler.loop.is_alive())
            with pytest.raises(
                StateUnavailableError, match="refuses the credentials of this client"
            ):
                connection.gather(reads(["/a"]), connection.deadline())
            until(lambda: connection.needs_restart)
            connection.restart()
            until(lambda: connection.state is CONNECTED)
            assert values(connection.gather(reads(["/a"]), connection.deadline())) == ["/a"]
