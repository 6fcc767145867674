"""Workers whose counts are known: each beat has counted ten rows more."""

import contextlib
import random
import threading
import time
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import StormkeeperError
from stormkeeper.pacemaker.client import PacemakerClient
from support.heartbeats import bolt, heartbeat, path, spout
from support.waiting import DEADLINE_SECS

PERIOD_SECS: Final = 1.0

#: What each beat adds to what a worker has emitted, and executed.
ROWS: Final = 10

#: By storm id: how many workers.
TOPOLOGIES: Final = {f"t-{number}-17": 3 for number in range(5)}

#: Of one worker each: one that is started again, and one that ends without a word.
RESTARTED: Final = "restarted-1-17"
SILENT: Final = "silent-1-17"


class Worker:
    """One worker: where it beats to, and what it has counted."""

    def __init__(self, storm_id: str, number: int, server: str) -> None:
        self.storm_id, self.node, self.server = storm_id, f"node-{number}", server
        #: Of its spout, and of its bolt: a topology's tasks are each of one worker.
        self.tasks = 2 * number + 1, 2 * number + 2
        #: Beats of this incarnation that a server took, and of those before.
        self.beats, self.before = 0, 0
        self.started = time.time()
        self.is_silent = False

    def details(self) -> bytes:
        """Return the next heartbeat, without names of components, as Storm's own workers'."""
        counted = ROWS * (self.beats + 1)
        first, second = self.tasks
        executors = {
            (first, first): spout(counted, acked=counted),
            (second, second): bolt({("lines", "default"): counted}, counted),
        }
        uptime = int(time.time() - self.started)
        return heartbeat(self.storm_id, executors, uptime_secs=uptime)

    def restart(self) -> None:
        self.before += self.beats
        self.beats, self.started = 0, time.time()


class CountingWorkers:
    """All workers, in a thread. A context manager, at whose end all have beaten once more.

    Parameters
    ----------
    servers
        The Pacemakers' addresses; a worker whose server fails goes to another one.
    seed
        Which server a worker begins at, and goes to.
    """

    def __init__(self, servers: list[str], seed: int) -> None:
        self._chance = random.Random(seed)
        self._servers = servers
        self._clients: dict[str, PacemakerClient] = {}
        named = {**TOPOLOGIES, RESTARTED: 1, SILENT: 1}
        self.workers = [
            Worker(storm_id, number, self._chance.choice(servers))
            for storm_id, count in named.items()
            for number in range(count)
        ]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "CountingWorkers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for client in self._clients.values():
            client.close()

    def of(self, storm_id: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.storm_id == storm_id]

    def use(self, servers: list[str]) -> None:
        """Have the workers beat to these servers, and to no other from the return on."""
        with self._lock:
            self._servers = servers
            for worker in self.workers:
                if worker.server not in servers:
                    worker.server = self._chance.choice(servers)

    def restart_one(self) -> None:
        with self._lock:
            self.of(RESTARTED)[0].restart()

    def silence_one(self) -> None:
        with self._lock:
            self.of(SILENT)[0].is_silent = True

    def end(self) -> None:
        """Stop; what each worker has counted is then what its newest heartbeat says."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(DEADLINE_SECS)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._beat()
            self._stop.wait(max(0.0, PERIOD_SECS - (time.monotonic() - began)))
        self._beat()

    def _beat(self) -> None:
        for worker in self.workers:
            with self._lock:
                if not worker.is_silent:
                    self._send(worker)

    def _send(self, worker: Worker) -> None:
        if worker.server not in self._clients:
            address = Address.parse(worker.server, 0)
            self._clients[worker.server] = PacemakerClient(address, try_timeout=2.0, retries=0)
        try:
            client = self._clients[worker.server]
            client.send_pulse(path(worker.storm_id, worker.node), worker.details())
            worker.beats += 1
        except StormkeeperError:  # it may have been taken, which the next beat overwrites
            with contextlib.suppress(IndexError):
                others = [one for one in self._servers if one != worker.server]
                worker.server = self._chance.choice(others)
