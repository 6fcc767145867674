import socket

import pytest

from stormkeeper.daemon.listening import address_of, is_loopback, listen
from stormkeeper.errors import ListenError


def test_it_listens_on_a_free_port_and_does_not_block():
    with listen("127.0.0.1", 0, keys="a.host, a.port", backlog=2) as listener:
        host, _, port = address_of(listener).rpartition(":")
        assert host == "127.0.0.1"
        with pytest.raises(BlockingIOError):
            listener.accept()
        with socket.create_connection((host, int(port)), 5), pytest.raises(ListenError) as taken:
            listen(host, int(port), keys="a.host, a.port", backlog=2)
        with pytest.raises(ListenError) as with_remedy:
            listen(host, int(port), keys="a.host, a.port", backlog=2, if_taken="take another")
    assert str(taken.value) == (
        f"cannot listen on 127.0.0.1:{port} (a.host, a.port): Address already in use"
    )
    assert str(with_remedy.value) == f"{taken.value}: take another"


def test_an_address_that_nobody_has_is_told():
    with pytest.raises(ListenError, match=r"nosuch\.invalid:1 \(a\.host\): Name or service"):
        listen("nosuch.invalid", 1, keys="a.host", backlog=1)
    with pytest.raises(ListenError, match=r"Cannot assign requested address$"):
        listen("192.0.2.1", 0, keys="a.host", backlog=1, if_taken="take another")


@pytest.mark.parametrize(("host", "is_alone"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_who_reaches_it(host, is_alone):
    with listen(host, 0, keys="a.host, a.port", backlog=1) as listener:
        assert is_loopback(listener) is is_alone
