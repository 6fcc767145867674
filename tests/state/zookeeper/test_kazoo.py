"""What of kazoo's own is overridden and relied on, and what it must therefore look like."""

import inspect
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol import connection as kazoo_connection
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Transaction
from kazoo.retry import KazooRetry

from stormkeeper.conf import Address
from stormkeeper.state.storage import Check, Create, Delete, SetData
from stormkeeper.state.zookeeper import requests
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.kazoo_client import (
    KazooHandler,
    SentRequest,
    ServerConnection,
    SingleQueueClient,
)


def names_in(function):
    """The names that a function's code uses, those of functions within it too."""
    codes, names = [inspect.unwrap(function).__code__], set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names


def source(name):
    return inspect.getsource(getattr(ConnectionHandler, name))


OVERRIDDEN = {
    "_send_request": ["self", "read_timeout", "connect_timeout"],
    "_write": ["self", "msg", "timeout"],
    "_connect": ["self", "host", "hostip", "port"],
    "_read": ["self", "length", "timeout"],
    "_read_socket": ["self", "read_timeout"],
    "_read_watch_event": ["self", "buffer", "offset"],
    "_authenticate_with_sasl": ["self", "host", "timeout"],
    "_expand_client_hosts": ["self"],
}


@pytest.fixture
def client():
    return KazooClient(handler=KazooHandler(EnsembleSettings(servers=(Address("127.0.0.1", 1),))))


class TestKazooHasTheShapeThatIsKnown:
    """If one of these fails, kazoo has changed: read its new source before this is changed."""

    @pytest.mark.parametrize("name", OVERRIDDEN)
    def test_what_is_overridden(self, name):
        parameters = OVERRIDDEN[name]
        assert list(inspect.signature(getattr(ConnectionHandler, name)).parameters) == parameters
        ours = list(inspect.signature(getattr(ServerConnection, name)).parameters)
        assert [parameter.lstrip("_") for parameter in ours] == parameters

    def test_nothing_else_is_overridden(self):
        assert vars(ServerConnection).keys() & vars(ConnectionHandler).keys() - {
            "__module__",
            "__doc__",
            "__init__",
        } == set(OVERRIDDEN)

    @pytest.mark.parametrize(
        ("caller", "used"),
        [
            ("zk_loop", {"_connect_loop"}),
            ("_connect_loop", {"_expand_client_hosts", "ForceRetryError"}),
            ("_connect_attempt", {"_connect", "_read_socket", "_send_request", "_send_ping"}),
            ("_connect", {"sasl_options", "_authenticate_with_sasl", "create_connection"}),
            ("_read", {"_socket", "select", "pending", "recv"}),
            ("_read_header", {"_read"}),
            ("_expand_client_hosts", {"hosts"}),
            ("_send_request", {"_queue", "_pending", "_submit", "_read_sock"}),
            ("_submit", {"_write"}),
            ("_write", {"_socket_error_handling", "_socket", "select", "send"}),
        ],
    )
    def test_who_calls_whom(self, caller, used):
        assert used <= names_in(getattr(ConnectionHandler, caller))

    def test_the_request_that_is_sent_is_the_first_in_the_queue(self):
        """It is claimed before kazoo takes it, and another than that one is never sent."""
        sending = source("_send_request")
        assert "request, async_object = client._queue[0]" in sending
        assert sending.count("client._queue.popleft()") == sending.count("self._submit(") == 1
        assert sending.index("self._submit(") < sending.index("client._queue.popleft()")
        # A byte for each request.
        assert sending.index("client._queue.popleft()") < sending.rindex("_read_sock.recv(1)")
        senders = [name for name in vars(ConnectionHandler) if "_queue" in names_of(name)]
        assert senders == ["_send_request"]

    def test_a_queue_is_emptied_before_it_is_replaced(self):
        """So all that ours keeps is what came in between."""
        ending = inspect.getsource(KazooClient._session_callback)
        assert ending.index("self._notify_pending(state)") < ending.index("self._reset()")
        assert "self._queue.popleft()" in inspect.getsource(KazooClient._notify_pending)
        assert "self._queue = deque()" in inspect.getsource(KazooClient._reset)
        assert "self._queue.append(" in inspect.getsource(KazooClient._call)
        client = SingleQueueClient(
            handler=KazooHandler(EnsembleSettings(servers=(Address("127.0.0.1", 1),)))
        )
        queue = client._queue
        client._reset()
        assert client._queue is queue
        own = {name for name in vars(SingleQueueClient) if not name.startswith("__")}
        assert own == {"_queue"}

    def test_nothing_is_sent_before_it_has_authenticated(self):
        """kazoo says that it is connected, authenticates, and only then looks into its queue."""
        connecting = source("_connect")
        assert connecting.index("KeeperState.CONNECTED)") < connecting.index("_authenticate_with")
        assert connecting.index("_authenticate_with") < connecting.index("client_auth_data_copy:")
        attempt = source("_connect_attempt")
        assert attempt.index("self._connect(") < attempt.index("self._send_request(")

    def test_two_thirds_of_the_sessions_timeout_are_returned(self):
        connecting = source("_connect")
        assert "read_timeout = negotiated_session_timeout * 2.0 / 3.0" in connecting
        assert "return read_timeout, connect_timeout" in connecting

    def test_request_is_encoded_before_it_is_sent(self):
        """So what fails otherwise than by the connection was not sent."""
        submitting = source("_submit")
        assert submitting.index("request.serialize()") < submitting.index("self._write(")
        assert submitting.count("self._write(") == 1

    def test_what_ends_a_connection_does_not_end_the_thread(self):
        attempt = source("_connect_attempt")
        for handled in (
            "except (ConnectionDropped, KazooTimeoutError)",
            "except AuthFailedError",
            "except SessionExpiredError",
        ):
            assert handled in attempt

    def test_what_is_called(self):
        for name, parameters in {
            "_submit": ["self", "request", "timeout", "xid"],
            "_read_header": ["self", "timeout"],
        }.items():
            signature = inspect.signature(getattr(ConnectionHandler, name))
            assert list(signature.parameters) == parameters

    def test_the_client(self, client):
        retry = KazooRetry()
        ours = ServerConnection(
            *(client, retry, None), answer_secs=1.0, on_made=print, on_refused=print, on_event=print
        )
        own = client._connection
        assert set(vars(own)) <= set(vars(ours))
        assert {"_read_sock", "_socket", "client", "handler", "sasl_options"} <= set(vars(own))
        assert not client._queue
        assert client.connected is False

    def test_what_ends_a_pause_is_given_to_the_retry(self):
        retry = KazooRetry()
        KazooClient(connection_retry=retry)
        assert retry.copy().interrupt is retry.interrupt is not None

    @pytest.mark.parametrize(
        "request_",
        [
            requests.get("/a"),
            requests.exists("/a"),
            requests.children("/a"),
            requests.set_data("/a", b""),
            requests.delete("/a"),
            requests.watch_tree("/a"),
            requests.transaction([Check("/a", 0)], lambda _node: None),
            requests.create(Create("/a", b""), lambda _node: None),
        ],
        ids=lambda request: request.what,
    )
    def test_what_is_returned_is_what_is_queued(self, client, request_):
        """So it can be withdrawn; of kazoo's ``create_async`` and ``sync_async`` this is not so."""
        client._state = kazoo_connection.KeeperState.CONNECTING
        call = request_.send(client)
        ((_, queued),) = client._queue
        assert queued is call
        assert type(call) is SentRequest

    def test_a_transaction_is_its_operations(self, client):
        theirs = client.transaction()
        theirs.check("/a", 1)
        theirs.create("/b", b"x", None, True, True)
        theirs.create("/b", b"x", None, False, False)
        theirs.set_data("/c", b"y", 2)
        theirs.delete("/d", 3)
        ours = [
            Check("/a", 1),
            Create("/b", b"x", ephemeral=True, sequential=True),
            Create("/b", b"x"),
            SetData("/c", b"y", 2),
            Delete("/d", 3),
        ]
        client._state = kazoo_connection.KeeperState.CONNECTING
        requests.transaction(ours, lambda _node: None).send(client)
        ((sent, _),) = client._queue
        assert sent.operations == theirs.operations
        assert sent.serialize() == Transaction(theirs.operations).serialize()

    def test_what_it_lets_its_user_bring(self):
        """`KazooHandler` and `SentRequest` add only these public names to those of kazoo."""
        added = {"claim", "withdraw", "is_answered_by"}
        for ours, theirs in (
            (KazooHandler, SequentialThreadingHandler),
            (SentRequest, AsyncResult),
        ):
            public = {name for name in vars(ours) if not name.startswith("_")}
            assert public - set(dir(theirs)) <= added

    def test_whatever_the_version_it_is_one_that_is_known(self):
        """The cap, and this test, are moved together with a look at kazoo's new source."""
        project = Path(__file__).parents[3] / "pyproject.toml"
        assert "kazoo>=2.11,<2.12" in tomllib.loads(project.read_text())["project"]["dependencies"]
        assert metadata.version("kazoo").startswith("2.11.")


def names_of(name):
    found = vars(ConnectionHandler)[name]
    return names_in(found) if inspect.isfunction(found) else set()
