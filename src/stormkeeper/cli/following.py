"""Following the names below a path, on Pacemakers that go and come."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from stormkeeper.cli.listing import Listing, remark
from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerError, StormkeeperError
from stormkeeper.heartbeats.coverage import unproven_on
from stormkeeper.pacemaker.client.missing_servers import ALL_ANSWER, missing
from stormkeeper.pacemaker.client.pool import PacemakerPool

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

#: Seconds between two looks.
_WATCH_SECS: Final = 2.0


def follow(pool: PacemakerPool, path: str, *, as_json: bool, timeout_secs: float) -> None:
    """Print the names below a path, and those that come and go, until interrupted.

    Parameters
    ----------
    timeout_secs
        ``nimbus.task.timeout.secs``: for how long a Pacemaker that was started while it was watched
        has to take heartbeats before what it does not hold is said to have gone.

    Raises
    ------
    PacemakerError
        At the first look nobody answered.
    """
    listing = Listing(as_json=as_json)
    outages = _Outages(pool.clients)
    told: set[str] = set()
    began = time.monotonic()
    names = pool.children(path)
    remark(f"watching {path}")
    listing.show(names)
    outages.tell(pool.failures)
    #: When the last look began that found all names that are listed.
    all_there = began
    while True:
        time.sleep(_WATCH_SECS)
        began = time.monotonic()
        try:
            names = pool.children(path)
        except PacemakerError as error:
            outages.tell_all(error)
            continue
        outages.tell(pool.failures)
        if listing.names.issubset(names):
            listing.show(names)
            all_there = began
            continue
        infos = {} if pool.failures else pool.server_infos()
        doubtful = unproven_on(infos, time.monotonic() - all_there, timeout_secs)
        for server, info in doubtful.items():
            if info.instance not in told:
                told.add(info.instance)
                remark(
                    f"{taking_for(server, info)}: what is not there is not said to have gone until"
                    f" it has for {timeout_secs:g} s"
                )
        if pool.failures or doubtful or _any_failed(infos):
            listing.show_more(names)
        else:
            listing.show(names)
            all_there = began


def _any_failed(infos: "Mapping[Address, ServerInfo | StormkeeperError | None]") -> bool:
    return any(isinstance(info, StormkeeperError) for info in infos.values())


def taking_for(server: Address, info: "ServerInfo") -> str:
    """Say for how long a server can have received every pulse."""
    return f"{server} has taken heartbeats for only {info.horizon_ms / 1000:.1f} s"


class _Outages:
    """Tells each change of who answers once."""

    def __init__(self, servers: Iterable[Address]) -> None:
        self._servers = frozenset(servers)
        self._missing: frozenset[Address] = frozenset()

    def tell(self, failures: Mapping[Address, str]) -> None:
        """Take in which servers a look missed."""
        said = missing(failures, len(self._servers)) if failures else ALL_ANSWER
        self._tell(frozenset(failures), said)

    def tell_all(self, error: PacemakerError) -> None:
        """Take in that no server answered."""
        self._tell(self._servers, str(error))

    def _tell(self, now: frozenset[Address], said: str) -> None:
        if now != self._missing:
            self._missing = now
            remark(said)
