"""A leader that ZooKeeper does not hear any more stops before another one begins."""

from dataclasses import replace

import pytest

from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.proxy import Proxy
from support.stores import settings_for
from support.waiting import until

#: How long the server keeps a session that it does not hear.
SESSION_SECS = 2.0


@pytest.mark.zookeeper
@pytest.mark.parametrize("silence", [Proxy.cut, Proxy.stall], ids=["cut", "stall"])
def test_two_never_lead_at_once(zookeeper_server, zookeeper_root, nimbus, silence):
    """Also if the connection stays open, and nothing says that nobody is at its other end."""
    settings = settings_for(zookeeper_server, zookeeper_root, session_timeout_secs=SESSION_SECS)
    with Proxy(zookeeper_server.address) as proxy:
        far = ZooKeeperState(replace(settings, servers=(proxy.address,)))
        one, other = nimbus(None, session=far), nimbus(None, session=ZooKeeperState(settings))

        def leads_alone():
            if not other.elector.is_leader:
                return False
            assert not (one.elector.is_leader and other.elector.is_leader)
            return True

        one.lead()
        other.stand()
        silence(proxy)
        until(leads_alone)
        until(lambda: one.told[-1] is None)
        proxy.flow()
        if silence is Proxy.cut:
            proxy.mend()
        # Its next session queues anew.
        until(lambda: one.is_queued)
        # It takes leave while there is somebody to take leave of.
        one.close()
