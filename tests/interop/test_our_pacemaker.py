"""Our Pacemaker under Storm's own client."""

import pytest

from stormkeeper.conf import Address
from support.pacemaker import PacemakerProcess
from support.proxy import Proxy
from support.storm_peer import PeerProcess
from support.waiting import until

pytestmark = [pytest.mark.interop]

WORKERS = 4
TOPOLOGY = "wc-1-1700000000"

#: Storm's client tries for 12 s before it gives a server up, and comes back after as long.
BACK_SECS = 120.0


def need_login(storm_peer, security, say):
    """Skip the test where Storm's client cannot authenticate with Storm's own Pacemaker."""
    method = security["pacemaker.auth.method"]
    if not storm_peer.logs_in(security):
        reason = f"its client, its own Pacemaker, {method}: no login"
        # There is none to fail at: nothing works with these jars, or on this machine.
        assert method != "NONE", reason
        say(f"{reason}, so none is tried with ours")
        pytest.skip(reason)


def storm_yaml(host, port, **conf):
    return {"pacemaker.servers": [host], "pacemaker.port": port, **conf}


@pytest.mark.parametrize("security", ["DIGEST", "KERBEROS"], indirect=True)
def test_storms_workers_need_not_authenticate(storm_peer, security, say):
    with PacemakerProcess(conf=security) as pacemaker:
        conf = storm_yaml("localhost", pacemaker.port, **security)
        passed = storm_peer.checks("Client", "stranger", conf=conf)
    method = security["pacemaker.auth.method"]
    say(f"its client, unauthenticated, our Pacemaker, {method}: {passed} checks")


@pytest.mark.parametrize("security", ["NONE", "DIGEST", "KERBEROS"], indirect=True)
def test_storms_client_finds_in_ours_what_it_wants(storm_peer, security, say):
    need_login(storm_peer, security, say)
    with PacemakerProcess(conf=security) as pacemaker:
        # (Kerberos knows the service by this name.)
        conf = storm_yaml("localhost", pacemaker.port, **security)
        storm_peer.checks("Client", "login", conf=conf)
        passed = storm_peer.checks("Client", "all", conf=conf)
    say(f"its client, our Pacemaker, {security['pacemaker.auth.method']}: {passed} checks")


@pytest.mark.parametrize("security", ["NONE", "KERBEROS"], indirect=True)
@pytest.mark.parametrize("how", ["killed", "reset"])
def test_storms_workers_and_nimbus_come_back_to_ours(storm_peer, security, how, say):
    need_login(storm_peer, security, say)
    with (
        PacemakerProcess(conf=security) as pacemaker,
        Proxy(Address.parse(pacemaker.address, 0)) as proxy,
    ):
        conf = storm_yaml("localhost", proxy.address.port, **security)
        with PeerProcess(storm_peer, "Fleet", str(WORKERS), TOPOLOGY, conf=conf) as fleet:
            assert fleet.ask("beat 100") == WORKERS
            assert fleet.ask("read 100") == WORKERS
            if how == "killed":
                pacemaker.restart()
            else:
                proxy.cut()
                proxy.mend()
            until(lambda: fleet.ask("beat 200") == WORKERS, BACK_SECS)
            until(lambda: fleet.ask("read 200") == WORKERS, BACK_SECS)
            assert fleet.ask("delete") == 0
    method = security["pacemaker.auth.method"]
    say(f"{WORKERS} of its workers and its Nimbus come back to ours, {how}, {method}")
