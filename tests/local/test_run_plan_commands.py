"""Commands that a local cluster prints for another shell."""

import shlex

import pytest

from stormkeeper import conf
from stormkeeper.conf import Address
from stormkeeper.local import run_plan
from stormkeeper.local.run_plan import ServerAddresses

ZOOKEEPER = Address("127.0.0.1", 41000)
PACEMAKERS, NIMBUSES = (
    tuple(Address("127.0.0.1", port) for port in ports)
    for ports in ((41001, 41002), (41003, 41004))
)


def of(*overrides):
    places = ServerAddresses(ZOOKEEPER, PACEMAKERS, NIMBUSES)
    return run_plan.shell_commands(conf.load(files=(), overrides=overrides), places, "wc")


def settings(command):
    return shlex.split(command.partition(" -c ")[2].replace("-c ", ""))


@pytest.mark.parametrize(
    ("argv0", "shown"),
    [(".venv/bin/storm", ".venv/bin/storm"), ("/x/stormkeeper/__main__.py", "storm")],
)
def test_the_commands_name_the_addresses(monkeypatch, argv0, shown):
    monkeypatch.setattr("sys.argv", [argv0])
    assert of() == [
        f"{shown} status wc -c 'nimbus.seeds=[127.0.0.1:41003, 127.0.0.1:41004]'",
        f"{shown} heartbeats list /workerbeats"
        " -c 'pacemaker.servers=[127.0.0.1:41001, 127.0.0.1:41002]'",
        f"{shown} state tree -c storm.zookeeper.servers=127.0.0.1 -c storm.zookeeper.port=41000",
    ]


def test_they_win_over_the_user_s_own_configuration():
    own = ["storm.zookeeper.servers=far:1", "storm.zookeeper.port=1", "pacemaker.servers=far"]
    own += ["storm.zookeeper.ssl.enable=true"]
    _, heartbeats, state = of("storm.zookeeper.root=/elsewhere", own[-1])
    read = conf.load(files=(), overrides=[*own, *settings(heartbeats), *settings(state)])
    assert read["pacemaker.servers"] == [str(address) for address in PACEMAKERS]
    assert read["storm.zookeeper.servers"] == ["127.0.0.1"]
    assert read["storm.zookeeper.port"] == ZOOKEEPER.port
    assert read["storm.zookeeper.root"] == "/elsewhere"
    assert read["storm.zookeeper.ssl.enable"] is False
