import pytest

from stormkeeper.conf import Address
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
