"""Sessions with a ZooKeeper server: how they are made, what they write, what they are refused."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl

from stormkeeper import conf as configuration
from stormkeeper import paths
from stormkeeper.errors import (
    AccessDeniedError,
    ConfigError,
    InvalidPathError,
    NoNodeError,
    StateAuthenticationError,
    StateUnavailableError,
)
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.state.backends import connect
from stormkeeper.state.storage import digest_id
from stormkeeper.state.zookeeper.ensemble_settings import AccessRules, EnsembleSettings, Security
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.events import CHANGED
from support.hearing import Hearing
from support.stores import settings_for
from support.waiting import until

pytestmark = pytest.mark.zookeeper

VECTORS = Path(__file__).parents[2] / "vectors"


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


class TestConnecting:
    def test_from_configuration(self, zookeeper_settings, zookeeper_root, raw):
        conf = configuration.defaults().with_values(zookeeper_settings())
        state = connect(conf)
        state.set_data("/a", b"x")
        state.close()
        assert raw.get(f"{zookeeper_root}/a")[0] == b"x"
        assert raw.get(zookeeper_root)[0] == b"\x07"

    def test_times_and_servers_are_read_from_configuration(self):
        conf = configuration.defaults().with_values(
            {
                "storm.zookeeper.servers": ["a", "b:2182"],
                "storm.zookeeper.port": 2000,
                "storm.zookeeper.root": "/r",
                "storm.zookeeper.session.timeout": 1500,
                "storm.zookeeper.connection.timeout": 2500,
                "storm.zookeeper.retry.times": 7,
                "storm.zookeeper.retry.interval": 250,
                "storm.zookeeper.retry.intervalceiling.millis": 3500,
            }
        )
        settings = EnsembleSettings.from_conf(conf)
        assert [str(server) for server in settings.servers] == ["a:2000", "b:2182"]
        assert settings == EnsembleSettings(settings.servers, "/r", 1.5, 2.5, 7, 0.25, 3.5)

    def test_a_server_without_a_port(self):
        conf = configuration.defaults().with_values({"storm.zookeeper.port": 0})
        with pytest.raises(ConfigError, match=r"storm\.zookeeper\.port is 0"):
            connect(conf)

    def test_the_root_may_be_deep_or_none(self, zookeeper_server, zookeeper_root, raw):
        deep = f"{zookeeper_root}/a/b"
        state = ZooKeeperState(settings_for(zookeeper_server, deep))
        state.set_data("/x", b"1")
        state.close()
        assert raw.get(deep)[0] == b"\x07"
        assert raw.get(f"{zookeeper_root}/a")[0] == b""
        state = ZooKeeperState(settings_for(zookeeper_server, "/"))
        heard = Hearing(state)
        assert state.get_data(f"{deep}/x", watch=True) == b"1"
        state.set_data(f"{deep}/x", b"2")
        assert heard.events() == [(CHANGED, f"{deep}/x")]
        assert "zookeeper" in state.get_children("/")
        state.close()

    def test_a_root_that_is_no_path(self, zookeeper_server):
        with pytest.raises(InvalidPathError):
            ZooKeeperState(settings_for(zookeeper_server, "storm"))

    def test_an_absent_root_may_be_an_error(self, connect, zookeeper_server, zookeeper_root):
        settings = replace(settings_for(zookeeper_server, zookeeper_root), make_root=False)
        threads = set(threading.enumerate())
        with pytest.raises(NoNodeError, match=f"nothing at {zookeeper_root} in ZooKeeper at 127"):
            ZooKeeperState(settings)
        until(lambda: set(threading.enumerate()) <= threads)
        connect().set_data("/a", b"x")
        reader = ZooKeeperState(settings)
        assert reader.get_data("/a") == b"x"
        reader.close()

    def test_nobody_there(self, tmp_path):
        threads = set(threading.enumerate())
        absent = DevZooKeeper(tmp_path, port=1)
        settings = settings_for(absent, "/storm", call_timeout_secs=0.5)
        began = time.monotonic()
        with pytest.raises(StateUnavailableError, match=r"127\.0\.0\.1:1 within 0\.5 s"):
            ZooKeeperState(settings)
        assert time.monotonic() - began < 30
        until(lambda: set(threading.enumerate()) <= threads)

    def test_settings_that_are_none_leave_nothing(self, zookeeper_server):
        threads = set(threading.enumerate())
        settings = settings_for(zookeeper_server, "/storm")
        with pytest.raises(TypeError):
            ZooKeeperState(replace(settings, session_timeout_secs=None))
        assert set(threading.enumerate()) <= threads

    def test_the_first_server_may_be_away(self, zookeeper_server, zookeeper_root, tmp_path):
        absent = DevZooKeeper(tmp_path, port=1).address
        settings = settings_for(zookeeper_server, zookeeper_root)
        for _ in range(4):
            servers = (absent, *settings.servers, absent)
            state = ZooKeeperState(replace(settings, servers=servers))
            state.mkdirs("/a")
            state.close()

    def test_a_closed_session_leaves_nothing(self, connect):
        threads = set(threading.enumerate())
        descriptors = open_files()
        state = connect()
        mine = set(threading.enumerate()) - threads
        assert {thread.name.split()[0] for thread in mine} == {"state", "zookeeper"}
        assert all(thread.daemon for thread in mine)
        state.close()
        until(lambda: not mine & set(threading.enumerate()))
        until(lambda: open_files() <= descriptors)


def test_what_is_written_is_what_storm_writes(connect, raw, zookeeper_root):
    wrote = [json.loads(line) for line in (VECTORS / "znodes-gzip.jsonl").read_text().splitlines()]
    values = {
        node["path"].removeprefix("/stormgz"): bytes.fromhex(node["hex"] or "") for node in wrote
    }
    state = connect()
    for directory in paths.DIRECTORIES:
        state.mkdirs(directory)
    for node in wrote:
        path = node["path"].removeprefix("/stormgz")
        data = values[path]
        if path.endswith("/e0000000000"):
            state.mkdirs(paths.parent(path))
            assert state.create_sequential(path.removesuffix("0000000000"), data) == path
        elif node["ephemeral"]:
            state.set_ephemeral_node(path, data)
        elif any(other.startswith(f"{path}/") for other in values) or data == b"\x07":
            # Storm makes these on the way to others, or at its start.
            if data == b"\x07" and path:
                state.mkdirs(path)
        else:
            state.set_data(path, data)
    for node in wrote:
        path = node["path"].removeprefix("/stormgz")
        data, stat = raw.get(zookeeper_root + path)
        assert data == values[path], path
        assert (stat.ephemeralOwner != 0) is node["ephemeral"], path
        assert stat.version == node["version"], path
        (acl,) = raw.get_acls(zookeeper_root + path)[0]
        assert (acl.id.scheme, acl.id.id, acl.perms) == ("world", "anyone", 31), path


class TestRefusals:
    def test_a_value_above_the_servers_limit(self, connect):
        state = connect(retry_times=2)
        for write in (state.set_data, state.set_ephemeral_node, state.create_sequential):
            with pytest.raises(StateUnavailableError, match=r"2000000 bytes.*jute\.maxbuffer"):
                write("/large", bytes(2_000_000))
        state.set_data("/small", b"x")

    def test_an_acl(self, connect, raw, zookeeper_root):
        state = connect()
        raw.create(f"{zookeeper_root}/secret", b"", acl=[make_digest_acl("u", "p", all=True)])
        for call in (
            lambda: state.get_data("/secret"),
            lambda: state.set_data("/secret", b""),
            lambda: state.get_children("/secret"),
            lambda: state.read_many(["/", "/secret"]),
            lambda: state.children_many(["/", "/secret"]),
            lambda: state.children_data("/"),
            lambda: state.create_sequential("/secret/a", b""),
        ):
            with pytest.raises(AccessDeniedError, match=f"{zookeeper_root}/secret.*: the node's"):
                call()

    def test_who_was_denied_is_said(self, zookeeper_server, zookeeper_root, connect, raw):
        security = Security(
            digests=(("digest", "storm:secret"),),
            identities=(f"digest:{digest_id('storm:secret')}",),
            rules=AccessRules(authenticated=True),
        )
        connect().mkdirs("/")
        raw.create(f"{zookeeper_root}/secret", b"", acl=[make_digest_acl("u", "p", all=True)])
        settings = settings_for(zookeeper_server, zookeeper_root)
        state = ZooKeeperState(replace(settings, security=security))
        try:
            with pytest.raises(AccessDeniedError) as denied:
                state.get_data("/secret")
            assert str(denied.value).endswith(f"to this client ({security.identities[0]})")
            assert "storm:secret" not in str(denied.value)
        finally:
            state.close()

    def test_a_creator_that_the_server_does_not_know(self, zookeeper_server, zookeeper_root):
        rules = Security(rules=AccessRules(authenticated=True))
        with pytest.raises(StateAuthenticationError, match="does not take the ACL"):
            ZooKeeperState(replace(settings_for(zookeeper_server, zookeeper_root), security=rules))

    def test_a_value_that_was_never_set_is_empty(self, connect, raw, zookeeper_root):
        state = connect()
        raw.create(f"{zookeeper_root}/null", None)
        assert state.get_data("/null") == b""


def test_events_are_queued_before_what_they_announce_is_read(connect):
    state, other = connect(), connect()
    order = []
    state.register(lambda *_: order.append("told"))
    for number in range(50):
        order.clear()
        value = str(number).encode()
        state.get_data("/a", watch=True)
        other.set_data("/a", value)
        # The callbacks' thread runs what is queued in order: what is queued now comes later.
        until(lambda value=value: state.get_data("/a") == value)
        state._callbacks._queue.put(lambda: order.append("read"))
        until(lambda: len(order) == 2)
        assert order == ["told", "read"]
