"""Watches the Pacemakers of a local cluster, a thread each: a dead one delays no other."""

import logging
import threading
from collections.abc import Iterable

from stormkeeper import paths
from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerError, ProtocolError, SerializationError
from stormkeeper.heartbeats import following
from stormkeeper.heartbeats.following import Look, Position
from stormkeeper.local.ledger import Counts, Ledger, Pulse, Snapshot
from stormkeeper.pacemaker.client.client_settings import ClientSettings
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize

log = logging.getLogger(__name__)

ALL_TIME = ":all-time"

#: Without authentication and TLS.
_PLAIN = ClientSettings()

#: How long a Pacemaker may take to answer before it counts as silent, in seconds.
ANSWER_SECS = 0.5

#: How often a Pacemaker is looked at after the stop is asked for, until it has answered once.
LAST_LOOKS = 3


class ClusterWatcher:
    """Follows the changes on every Pacemaker and keeps them in a ledger.

    Parameters
    ----------
    servers
        The Pacemakers.
    period_secs
        Time between two looks; shorter than a heartbeat period, as a Pacemaker keeps only the
        newest pulse of a worker.
    settings
        How to talk to the Pacemakers.
    """

    def __init__(
        self,
        servers: Iterable[Address],
        *,
        period_secs: float,
        settings: ClientSettings = _PLAIN,
    ) -> None:
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._period = period_secs
        self._settings = settings
        self._threads = []
        for server in servers:
            self._ledger.expect(str(server))
            thread = threading.Thread(
                target=self._follow, args=(server,), name=f"watch {server}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def snapshot(self) -> Snapshot:
        """Return what was seen so far; times are of `time.monotonic`."""
        with self._lock:
            return self._ledger.snapshot()

    def finish(self) -> Snapshot:
        """Look once more at every Pacemaker, end the threads, and return all that was seen."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=10 * ANSWER_SECS)
        return self.snapshot()

    def _follow(self, server: Address) -> None:
        address = str(server)
        client = self._settings.client(
            server, name="storm-local", try_timeout=ANSWER_SECS, retries=0
        )
        position: Position | None = None
        is_failing = False
        with client:
            last_looks = 0
            while True:
                try:
                    look = following.look(client, position=position)
                    found = pulses(look)
                except (PacemakerError, ProtocolError) as error:
                    log.debug("%s does not answer: %s", address, error)
                    with self._lock:
                        self._ledger.silent(address)
                except Exception:
                    # It is looked at again: a thread that ended would show for ever what was.
                    if not is_failing:
                        log.exception("%s cannot be watched, a defect of Stormkeeper", address)
                    is_failing = True
                    with self._lock:
                        self._ledger.silent(address)
                else:
                    # Only now: what was read and not understood is read again.
                    is_failing, position = False, look.position
                    with self._lock:
                        self._ledger.answered(
                            address,
                            instance=look.info.instance,
                            pulses_received=look.info.pulses_received,
                            keys=look.info.keys,
                            pulses=found,
                        )
                    if last_looks:
                        return
                if last_looks == LAST_LOOKS:
                    return
                # One more look after the stop is asked for: the workers' last pulses count.
                last_looks += self._stop.wait(self._period)


def pulses(look: Look) -> list[Pulse]:
    """Return the heartbeats that a look brought; what is none is left out.

    A Pacemaker keeps only the newest pulse of a path, but counts each: those that the look does not
    show were overwritten since the one before, as a worker's last regular pulse is by its farewell.
    They are the path's own where it is the only one; of several nobody can tell, and each counts
    once.
    """
    changes = [(page.read_at, change) for page in look.pages for change in page.changes]
    overwritten = look.revisions - len(changes) if len(changes) == 1 else 0
    found = []
    for read_at, change in changes:
        worker = paths.parse_workerbeat(change.path)
        if change.details is None or worker is None:
            continue
        try:
            beat = deserialize(ClusterWorkerHeartbeat, change.details)
        except SerializationError as error:
            log.debug("%s holds no heartbeat: %s", change.path, error)
            continue
        found.append(
            Pulse(
                worker,
                read_at - (change.age_secs or 0.0),
                component_counts(beat),
                1 + overwritten,
                bool(beat.completed),
                beat.waiting or "",
            )
        )
    return found


def component_counts(beat: ClusterWorkerHeartbeat) -> dict[str, Counts]:
    """Sum a heartbeat's executors by component: rows emitted and executed since its start."""
    totals: dict[str, Counts] = {}
    for executor, stats in (beat.executor_stats or {}).items():
        name = stats.component or f"tasks {executor.task_start}-{executor.task_end}"
        emitted = sum(((stats.emitted or {}).get(ALL_TIME) or {}).values())
        bolt = stats.specific.bolt if stats.specific else None
        executed = sum(((bolt.executed or {}).get(ALL_TIME) or {}).values()) if bolt else 0
        partial = bool((stats.partial_batches or {}).get(ALL_TIME))
        counts = Counts(emitted, executed, partial=partial)
        totals[name] = totals[name] + counts if name in totals else counts
    return totals
