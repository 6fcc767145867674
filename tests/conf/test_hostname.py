import socket

from stormkeeper.conf import load
from stormkeeper.conf.hostname import hostname


def test_a_machine_is_called_as_configured_or_as_it_calls_itself():
    assert hostname(load(files=(), overrides=["storm.local.hostname=nimbus-1"])) == "nimbus-1"
    assert hostname(load(files=())) == socket.gethostname()
