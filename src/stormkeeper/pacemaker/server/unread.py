"""Whose answers the system took and could not deliver: what it still holds at the end of a drain.

A session is over when its last answer is handed to the system, which holds megabytes for a client
that does not read. Resetting the connection drops them.
"""

import fcntl
import socket
import struct
import termios
from pathlib import Path
from typing import Final

from stormkeeper.pacemaker.server.admission import plain_address

#: SIOCOUTQ of <linux/sockios.h>, which has the same number: bytes that the peer's system has not
#: acknowledged; with them counts, as one, the end of the stream.
_SIOCOUTQ: Final = termios.TIOCOUTQ
_END_OF_STREAM: Final = 1


def unacknowledged(port: int, descriptors: Path = Path("/proc/self/fd")) -> set[tuple[str, int]]:
    """Return which clients have not acknowledged all that was sent to them; Linux only.

    Some microseconds for each open file of this process. Empty where the system does not tell.

    Parameters
    ----------
    port
        Of this process, over which the connections came.
    descriptors
        A folder with this process's open files, by their numbers.

    Returns
    -------
    set of (address, port)
        Of the clients.
    """
    found = set()
    for descriptor in descriptors.iterdir() if descriptors.is_dir() else ():
        try:
            number = int(descriptor.name)
            [held] = struct.unpack("i", fcntl.ioctl(number, _SIOCOUTQ, bytes(4)))
            if held <= _END_OF_STREAM:
                continue
            with socket.fromfd(number, -1, -1) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    peer, own = connection.getpeername(), connection.getsockname()
                    if own[1] == port:
                        found.add((plain_address(peer[0]), peer[1]))
        except OSError:  # not a socket, or no longer connected
            continue
    return found
