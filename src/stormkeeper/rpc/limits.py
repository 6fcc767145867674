"""How much a server takes of its clients: bytes, connections, calls and seconds."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final, Self

from stormkeeper.conf import Conf

#: Descriptors that are kept from clients: files, ZooKeeper, other services of the same process.
_OWN_DESCRIPTORS: Final = 128
#: Connections at a time. A supervisor has one or two, a person's command one, for a moment.
MAX_CONNECTIONS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server.

    Storm has keys for the first three. The others are wide enough for any cluster that Storm runs
    on, and keep whoever means harm, or is broken, from the rest.
    """

    #: The longest message of a client, in bytes.
    max_frame: int = 1024 * 1024
    #: Calls that are carried out at a time.
    threads: int = 64
    #: Calls that wait for that: at most one of each connection, and those whose client has gone.
    max_waiting: int = 100_000
    #: Connections at a time.
    max_connections: int = MAX_CONNECTIONS
    #: The same from one address, so that one machine cannot keep the others out. A user interface
    #: or a proxy may have many.
    max_connections_per_address: int = 500
    #: Bytes of unanswered calls and unread answers of all connections together. Beyond it, one that
    #: holds more than a reading's worth ends.
    max_held: int = 128 * 1024 * 1024
    #: Seconds for an authentication that has begun, and for one that should.
    handshake_timeout: float = 10.0
    #: Seconds for the rest of a message that has begun.
    frame_timeout: float = 30.0
    #: Seconds that a call may take, with its waiting. Storm's clients wait as long.
    answer_timeout: float = 600.0
    #: Seconds in which a client must read some of a waiting answer.
    unread_timeout: float = 60.0
    #: Seconds that a connection may stay open without a call.
    idle_timeout: float = 900.0

    @classmethod
    def of(cls, conf: Conf) -> Self:
        """Return the limits of Nimbus's service that a configuration sets."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_DESCRIPTORS
        return cls(
            max_frame=conf["nimbus.thrift.max_buffer_size"],
            # A submission waits in one for Nimbuses that fetch its copies in another.
            threads=max(2, conf["nimbus.thrift.threads"]),
            max_waiting=conf["nimbus.queue.size"],
            max_connections=max(1, min(MAX_CONNECTIONS, descriptors)),
        )
