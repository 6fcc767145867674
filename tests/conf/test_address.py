import socket

import pytest

from stormkeeper.conf import Address, load
from stormkeeper.conf.address import check_host, hostname
from stormkeeper.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("a", Address("a", 6699), "a:6699"),
        ("a:7000", Address("a", 7000), "a:7000"),
        (" a.example.org:1 ", Address("a.example.org", 1), "a.example.org:1"),
        ("10.0.0.1:65535", Address("10.0.0.1", 65535), "10.0.0.1:65535"),
        ("[::1]:7000", Address("::1", 7000), "[::1]:7000"),
        ("[::1]", Address("::1", 6699), "[::1]:6699"),
        ("fe80::1%eth0", Address("fe80::1%eth0", 6699), "[fe80::1%eth0]:6699"),
    ],
)
def test_reads_and_writes(text, address, written):
    assert Address.parse(text, 6699) == address
    assert str(address) == written
    assert Address.parse(written, 1) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ":6699", "a:", "a:0", "a:65536", "a:-1", "a:+1", "a:x", "a:٣", "a b", "a,b:1"),
        *("[::1", "[::1]x", "[::1]7000", "[a]:1", "::1::g", "http://a:1", "a/b", "[]:1", "a:1:2"),
    ],
)
def test_refuses(text):
    with pytest.raises(ConfigError, match=r"host|port"):
        Address.parse(text, 6699)


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "A-1",
        "my_host",
        "münchen.example",
        "a.example.",
        "3f2a",
        "127.0.0.1",
        "::1",
        "fe80::1%eth0",
    ],
)
def test_possible_hosts(name):
    assert check_host(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *(
            (name, "no host name")
            for name in ("", "a..b", "-a", "a-", "a" * 64, "a b", "a:1", "a\n")
        ),
        *((name, "no host name") for name in ("${host}", "$HOST", "%zookeeper%", "{{ a }}", "<a>")),
        *((name, "no host name") for name in (".".join(["a" * 60] * 5), "a\u202eb")),
        *((name, "no IPv4 address") for name in ("10.0.0.256", "10.1", "1.2.3.4.5")),
    ],
)
def test_impossible_hosts(name, why):
    with pytest.raises(ConfigError, match=why):
        check_host(name)


def test_a_machine_is_called_as_configured_or_as_it_calls_itself(monkeypatch):
    assert hostname(load(files=(), overrides=["storm.local.hostname=nimbus-1"])) == "nimbus-1"
    assert hostname(load(files=())) == socket.gethostname()
    monkeypatch.setattr(socket, "gethostname", lambda: "(none)")
    with pytest.raises(ConfigError, match=r"set storm\.local\.hostname"):
        hostname(load(files=()))
