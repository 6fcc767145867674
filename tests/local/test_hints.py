"""Commands that a local cluster prints for another shell."""

import shlex

import pytest

from stormkeeper import conf
from stormkeeper.conf import Address
from stormkeeper.local import hints

ZOOKEEPER = Address("127.0.0.1", 41000)
PACEMAKERS = ["127.0.0.1:41001", "127.0.0.1:41002"]


def of(*overrides):
    return hints.commands(conf.load(files=(), overrides=overrides), ZOOKEEPER, PACEMAKERS)


def settings(command):
    return shlex.split(command.partition(" -c ")[2].replace("-c ", ""))


@pytest.mark.parametrize(
    ("argv0", "shown"),
    [(".venv/bin/storm", ".venv/bin/storm"), ("/x/stormkeeper/__main__.py", "storm")],
)
def test_the_commands_name_the_addresses(monkeypatch, argv0, shown):
    monkeypatch.setattr("sys.argv", [argv0])
    assert of() == [
        f"{shown} heartbeats list /workerbeats"
        " -c 'pacemaker.servers=[127.0.0.1:41001, 127.0.0.1:41002]'",
        f"{shown} state tree -c storm.zookeeper.servers=127.0.0.1 -c storm.zookeeper.port=41000",
    ]


def test_they_win_over_the_user_s_own_configuration():
    own = ["storm.zookeeper.servers=far:1", "storm.zookeeper.port=1", "pacemaker.servers=far"]
    own += ["storm.zookeeper.ssl.enable=true"]
    heartbeats, state = of("storm.zookeeper.root=/elsewhere", own[-1])
    read = conf.load(files=(), overrides=[*own, *settings(heartbeats), *settings(state)])
    assert read["pacemaker.servers"] == PACEMAKERS
    assert read["storm.zookeeper.servers"] == ["127.0.0.1"]
    assert read["storm.zookeeper.port"] == ZOOKEEPER.port
    assert read["storm.zookeeper.root"] == "/elsewhere"
    assert read["storm.zookeeper.ssl.enable"] is False
