import pytest

from stormkeeper.conf import defaults
from stormkeeper.pacemaker.server.pacemaker_server import PacemakerServer
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.server_status import clock, recent_sizes
from stormkeeper.pacemaker.server.store_limits import StoreLimits
from support.certificates import tls_conf
from support.engines import ENGINES


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
def test_the_engine_is_the_one_that_serves():
    with_tls = PacemakerServer(defaults().with_values(tls_conf()))
    served_by = "interpreted (TLS is served in plain Python)"
    assert with_tls.snapshot().engine == served_by
    assert with_tls.describe().startswith(f"engine: {served_by}; ")
    assert PacemakerServer(defaults()).snapshot().engine == "compiled"


def test_pulses_that_expire_while_room_is_made_are_counted():
    server = PacemakerServer(defaults())
    server.store.set_limits(StoreLimits(tombstones=4))
    for n in range(20):
        server.store.put(b"/d/%d" % n, b"")
    server.store.expiry._doomed_before = clock() + 60
    deleted = sum(server.store.delete(b"/d/%d" % n) for n in range(10))
    assert server.snapshot().pulses_expired == 20 - deleted - server.store.index.keys > 0


def test_the_cost_is_bounded():
    index = PulseIndex()
    for n in range(3_000):
        index.bury(index.add(b"/gone/%d" % n, b"x", 0.0), 0.0)
    index.add(b"/there", b"x", 0.0)
    for n in range(3_000):
        index.add(b"/there/%d" % n, bytes(n), 0.0)
    assert sorted(recent_sizes(index)) == list(range(2_000, 3_000))


def test_sizes_are_of_pulses():
    index = PulseIndex()
    assert recent_sizes(index) == []
    index.bury(index.add(b"/a", b"xx", 0.0), 0.0)
    index.add(b"/b", b"yyy", 0.0)
    assert recent_sizes(index) == [3]
