"""The last pulses of silent workers: a worker with no query left is not dead.

The liveness query reads no values, so the newest pulse of each silent worker is read, once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from stormkeeper.conf import Address
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.pool_reads import ask_all
from stormkeeper.pacemaker.client.server_reads import Question, pulses_of
from stormkeeper.paths import WORKERBEATS, WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoded_rows import decode
from stormkeeper.pipeline.source import Options
from stormkeeper.pipeline.worker_liveness import LastPulseFacts

#: Pulses per request, longest silence first, and requests per batch.
_AT_ONCE: Final = 2000
_ROUNDS: Final = 5


class _Pulse(NamedTuple):
    server: str
    instance: str | None
    revision: int


class LastPulses:
    """Reads each silent worker's last pulse once; a `worker_liveness.ReadLastPulses`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        #: The pulses read of workers that are still silent.
        self._read: dict[WorkerId, _Pulse] = {}

    def __call__(self, silent: pa.Table, servers: Collection[str]) -> LastPulseFacts:
        known, asked = {}, {}
        silent = silent.sort_by("last_seen")
        for storm_id, node, port, *which in rows.columns_of(
            silent, *WorkerId._fields, *_Pulse._fields
        ):
            worker, pulse = WorkerId(storm_id, node, port), _Pulse(*which)
            read = self._read.get(worker)
            if read is not None:
                known[worker] = read
            # A Java Pacemaker, without revisions, was read with its values.
            if read != pulse and pulse.revision is not None and pulse.server in servers:
                asked[worker] = pulse
        found = self._ask_in_rounds(asked)
        self._read = known | {worker: asked[worker] for worker in found}
        return LastPulseFacts(completed=_completed(found), unread=asked.keys() - found.keys())

    def _ask_in_rounds(self, pulses: Mapping[WorkerId, _Pulse]) -> dict[WorkerId, bytes | None]:
        found: dict[WorkerId, bytes | None] = {}
        deadline = time.monotonic() + self._options.timeout_secs
        for _ in range(_ROUNDS):
            left = {worker: pulse for worker, pulse in pulses.items() if worker not in found}
            more = self._ask(left) if left and time.monotonic() < deadline else {}
            if not more:
                break
            found |= more
        return found

    def _ask(self, pulses: Mapping[WorkerId, _Pulse]) -> dict[WorkerId, bytes | None]:
        """Return the newest pulses from servers that answer; None without a pulse."""
        by_server: dict[Address, list[WorkerId]] = defaultdict(list)
        for worker, pulse in pulses.items():
            of_server = by_server[Address.parse(pulse.server, 0)]
            if len(of_server) < _AT_ONCE:
                of_server.append(worker)
        patience = self._options.timeout_secs
        settings = self._options.settings()
        clients = [
            settings.client(server, name="last-pulses", try_timeout=patience, retries=0)
            for server in by_server
        ]

        def question(client: PacemakerClient) -> Question[dict[str, bytes | None]]:
            return pulses_of([_path(*worker) for worker in by_server[client.address]])

        try:
            outcomes = ask_all(clients, question, try_timeout=patience, deadline=patience)
        finally:
            for client in clients:
                client.close()
        return {
            worker: found[_path(*worker)]
            for server, found in outcomes.answered.items()
            for worker in by_server[server]
        }


def _path(storm_id: str, node: str, port: int) -> str:
    """Return the path of a worker's pulse, which ZooKeeper may not accept."""
    return f"{WORKERBEATS}/{storm_id}/{node}-{port}"


def _completed(found: Mapping[WorkerId, bytes | None]) -> set[WorkerId]:
    columns = [heartbeats["completed"] for _, heartbeats in decode(found.values())]
    said = (is_last for column in columns for is_last in column.to_pylist())
    return {worker for worker, is_last in zip(found, said, strict=True) if is_last}
