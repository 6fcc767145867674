"""How many connections are let in: in all, and from one address.

IPv6 addresses are counted by their /64 network, of which one machine usually has all.
"""

import ipaddress
from collections import Counter

from stormkeeper.daemon.logs import counted


def plain_address(address: str) -> str:
    """Return an address as its owner would write it: IPv4 that came in over IPv6 as IPv4."""
    mapped = address.removeprefix("::ffff:")
    return mapped if "." in mapped else address.partition("%")[0]


def network_of(address: str) -> str:
    """Return what stands for everybody who is likely to be the owner of an address."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    except ValueError:
        return address


class Admission:
    """Counts connections, and says which one is too many.

    Parameters
    ----------
    most
        Connections at a time.
    most_per_address
        The same from one address; 0: no limit but `most`.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        #: May be changed; who is in stays in.
        self.most = most
        self.most_per_address = most_per_address
        self._by_network: Counter[str] = Counter()

    def refuses(self, address: str, already: int) -> tuple[str, str] | None:
        """Return why a connection from `address` is too many; None if it is not.

        Parameters
        ----------
        address
            Where it comes from.
        already
            Connections that are open, from anywhere.

        Returns
        -------
        tuple of (cause, reason), or None
            A word to count by, and words for the log.
        """
        if already >= self.most:
            reason = f"{counted(already, 'connection')} open already (pacemaker.max.connections)"
            return "connections", reason
        if self.most_per_address:
            same = self._by_network[network_of(address)]
            if same >= self.most_per_address:
                open_already = f"it has {counted(same, 'connection')} open"
                return "address", f"{open_already} (pacemaker.max.connections.per.address)"
        return None

    def entered(self, address: str) -> None:
        """Count a connection that was let in."""
        self._by_network[network_of(address)] += 1

    def left(self, address: str) -> None:
        """Take back one that is closed."""
        network = network_of(address)
        self._by_network[network] -= 1
        if self._by_network[network] <= 0:
            del self._by_network[network]
