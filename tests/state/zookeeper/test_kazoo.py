"""What of kazoo is overridden and relied on, and what it must therefore look like."""

import inspect
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.protocol import connection as kazoo_connection
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KeeperState

from stormkeeper.state.zookeeper.wire import Wire


def names_in(function):
    """The names that a function's code uses, those of functions within it too."""
    codes, names = [inspect.unwrap(function).__code__], set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names


class TestKazooHasTheShapeThatIsKnown:
    """If one of these fails, kazoo has changed: read its new source before this is changed."""

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("_send_request", ["self", "read_timeout", "connect_timeout"]),
            ("_read_socket", ["self", "read_timeout"]),
            ("_read_header", ["self", "timeout"]),
            ("_read_response", ["self", "header", "buffer", "offset"]),
            ("_read", ["self", "length", "timeout"]),
            ("_connect", ["self", "host", "hostip", "port"]),
            ("_invoke", ["self", "timeout", "request", "xid"]),
            ("_submit", ["self", "request", "timeout", "xid"]),
            ("_expand_client_hosts", ["self"]),
            ("_connect_loop", ["self", "retry"]),
            ("_authenticate_with_sasl", ["self", "host", "timeout"]),
        ],
    )
    def test_what_is_overridden(self, name, parameters):
        assert list(inspect.signature(getattr(ConnectionHandler, name)).parameters) == parameters
        ours = list(inspect.signature(getattr(Wire, name)).parameters)
        assert [parameter.lstrip("_") for parameter in ours] == parameters

    def test_nothing_else_is_overridden(self):
        shared = {name for name in vars(Wire) if name in vars(ConnectionHandler)}
        assert {name for name in shared if inspect.isfunction(vars(Wire)[name])} == {
            "__init__",
            "_send_request",
            "_read_socket",
            "_read_header",
            "_read_response",
            "_read",
            "_connect",
            "_invoke",
            "_submit",
            "_expand_client_hosts",
            "_connect_loop",
            "_authenticate_with_sasl",
        }

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("_write", ["self", "msg", "timeout"]),
            ("_socket_error_handling", ["self"]),
        ],
    )
    def test_what_is_called(self, name, parameters):
        assert list(inspect.signature(getattr(ConnectionHandler, name)).parameters) == parameters

    @pytest.mark.parametrize(
        ("caller", "used"),
        [
            ("zk_loop", {"_connect_loop", "_session_callback"}),
            (
                "_connect_attempt",
                {
                    "_connect",
                    "_read_socket",
                    "_send_request",
                    "_send_ping",
                    "_read_sock",
                    "CLOSE_RESPONSE",
                    "_session_callback",
                    "AuthFailedError",
                    "ConnectionDropped",
                },
            ),
            (
                "_connect",
                {
                    "create_connection",
                    "_session_callback",
                    "sasl_options",
                    "_authenticate_with_sasl",
                    "auth_data",
                    "_invoke",
                },
            ),
            ("_read_header", {"_read"}),
            ("_connect_loop", {"_expand_client_hosts", "_connect_attempt", "ForceRetryError"}),
            ("_expand_client_hosts", {"hosts", "randomize_hosts"}),
            ("_invoke", {"_submit", "_read_header", "_read", "RuntimeError"}),
            ("_submit", {"type", "serialize"}),
            (
                "_read_socket",
                {"_read_header", "_read_response", "_read_watch_event", "_pending", "AUTH_XID"},
            ),
            ("_read_response", {"_pending", "popleft", "set", "set_exception"}),
            ("_send_request", {"_queue", "_pending", "_xid", "_submit", "_read_sock", "AUTH_XID"}),
        ],
    )
    def test_who_calls_whom(self, caller, used):
        assert used <= names_in(getattr(ConnectionHandler, caller))

    def test_an_answer_is_only_set(self):
        # `Answer` has no more of kazoo's future than this.
        for function in (ConnectionHandler._read_response, KazooClient._notify_pending):
            source = inspect.getsource(function)
            used = {part.split("(")[0] for part in source.split("async_object.")[1:]}
            assert used <= {"set", "set_exception"}

    def test_the_client(self):
        client = KazooClient()
        wire = Wire(client, None, print)
        own = client._connection
        assert set(vars(own)) <= set(vars(wire))
        assert {"_read_sock", "_write_sock", "_socket", "_xid", "client", "handler"} <= set(
            vars(own)
        )
        assert wire.sasl_options is None
        assert wire.retry_sleeper.interrupt is client._conn_retry.interrupt
        for name in ("_queue", "_pending", "_state", "_conn_retry", "last_zxid"):
            assert name in vars(client), name
        assert client.connected is False
        # The only one of its methods that is replaced.
        assert {name for name in vars(client) if hasattr(KazooClient, name)} - set(
            vars(KazooClient())
        ) == {"_session_callback"}
        assert client._state == KeeperState.CLOSED

    def test_how_a_client_hands_over(self):
        used = names_in(KazooClient._call)
        assert {"_state", "_queue", "append", "_connection", "_write_sock", "send"} <= used
        assert kazoo_connection.AUTH_XID == -4

    def test_how_a_client_takes_a_state(self):
        """All of it is done under a lock; what is queued then was failed before."""
        callback = KazooClient._session_callback
        assert list(inspect.signature(callback).parameters) == ["self", "state"]
        assert {"_state", "_make_state_change", "_notify_pending", "_reset"} <= names_in(callback)
        assert not {"wait", "acquire", "join", "get"} & names_in(callback)
        # What was sent fails first: `Answers.none_sent` counts on it.
        failing = inspect.getsource(KazooClient._notify_pending)
        assert failing.index("self._pending.popleft") < failing.index("self._queue.popleft")
        # Each of them is one in which requests are sent, or one in which they are not.
        assert {name for name in vars(KeeperState) if name.isupper()} == {
            "AUTH_FAILED",
            "CONNECTED",
            "CONNECTED_RO",
            "CONNECTING",
            "CLOSED",
            "EXPIRED_SESSION",
        }

    def test_whatever_the_version_it_is_one_that_is_known(self):
        """The cap, and this test, are moved together with a look at kazoo's new source."""
        project = Path(__file__).parents[3] / "pyproject.toml"
        assert "kazoo>=2.11,<2.12" in tomllib.loads(project.read_text())["project"]["dependencies"]
        assert metadata.version("kazoo").startswith("2.11.")
