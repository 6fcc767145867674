"""What workers that fell silent said last, read once.

Who is alive is read without values. But the last pulse of a worker whose queries have all ended by
themselves says so, and such a worker is not to be called dead. So once a worker is late, its newest
pulse is read, those of a batch together.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import SerializationError
from stormkeeper.heartbeats.liveness import Row
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.fanout import ask_all
from stormkeeper.pacemaker.client.questions import Question, pulses_of
from stormkeeper.paths import WorkerId, workerbeat
from stormkeeper.pipeline.current import Said
from stormkeeper.pipeline.options import Options
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize

#: Pulses that are read of one server in one batch, those that have been silent for longest first:
#: read and decoded in a second or so.
_AT_ONCE: Final = 2000

#: Which pulse of a worker it is: its server, that one's instance, and the revision.
_Pulse = tuple[str, str | None, int | None]


class LastPulses:
    """Reads each silent worker's last pulse once; it is a `current.LastWords`.

    Parameters
    ----------
    options
        How the Pacemakers are read.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        #: Of the workers that are silent, the pulses that were read.
        self._read: dict[WorkerId, _Pulse] = {}

    def __call__(self, silent: Sequence[Row], servers: Collection[str]) -> Said:
        """Return who is completed, and who is to be asked again.

        Parameters
        ----------
        silent
            Workers that are late or dead.
        servers
            Those that answer.
        """
        known = {row.worker: self._read.get(row.worker) for row in silent}
        self._read = {worker: pulse for worker, pulse in known.items() if pulse is not None}
        # A Java Pacemaker, which has no revisions, was read with its values.
        asked = [
            row
            for row in sorted(silent, key=lambda row: row.last_seen)
            if row.revision is not None and known[row.worker] != _pulse(row)
            if row.server in servers
        ]
        found = self._ask(asked) if asked else {}
        self._read |= {row.worker: _pulse(row) for row in asked if row.worker in found}
        return Said(
            completed={worker for worker, details in found.items() if _is_last(details)},
            unread={row.worker for row in asked if row.worker not in found},
        )

    def _ask(self, rows: Sequence[Row]) -> dict[WorkerId, bytes | None]:
        """Return the newest pulse of each worker whose server answers; None where it has none."""
        by_server: dict[Address, list[Row]] = defaultdict(list)
        for row in rows:
            of_server = by_server[Address.parse(row.server, 0)]
            if len(of_server) < _AT_ONCE:
                of_server.append(row)
        patience = self._options.timeout_secs
        settings = self._options.settings()
        clients = [
            settings.client(server, name="last-pulses", try_timeout=patience, retries=0)
            for server in by_server
        ]

        def question(client: PacemakerClient) -> Question[dict[str, bytes | None]]:
            return pulses_of([_path(row.worker) for row in by_server[client.address]])

        try:
            outcomes = ask_all(
                clients,
                question,
                try_timeout=patience,
                deadline=patience,
                tries=Counter(),
                started=time.monotonic(),
            )
        finally:
            for client in clients:
                client.close()
        return {
            row.worker: found[_path(row.worker)]
            for server, found in outcomes.answered.items()
            for row in by_server[server]
        }


def _pulse(row: Row) -> _Pulse:
    return row.server, row.instance, row.revision


def _path(worker: WorkerId) -> str:
    return workerbeat(*worker)


def _is_last(details: bytes | None) -> bool:
    if details is None:
        return False
    try:
        return bool(deserialize(ClusterWorkerHeartbeat, details).completed)
    except SerializationError:
        return False
