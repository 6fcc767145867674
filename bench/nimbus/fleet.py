"""All supervisors of a cluster and the pulses of their workers, simulated in one process.

    python bench/nimbus/fleet.py SETTINGS

SETTINGS is a JSON object: `supervisors`, `beat_secs`, `pacemakers` (ports), and the cluster's
`conf`. Each line of stdin is a command, and each gets a line of JSON as its answer; the process
ends with its stdin.

As the real supervisors do, each keeps an ephemeral node with its record, writes it again every five
seconds and at once when a worker starts or stops, follows the assignments, runs what they say, and
reports the workers of released launches stopped. A supervisor starts workers every three seconds: a
real one needs longer. The workers of a topology send equal values.

The process stands for other machines, so it has a low priority.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nimbus import cluster
from state import filling
from stormkeeper import paths
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from stormkeeper.state import backends
from stormkeeper.state.storm.cluster_view import records_below
from stormkeeper.state.subscription import Subscription, Subtree
from stormkeeper.supervisor import registration
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorInfo, LaunchClaim
from stormkeeper.thrift.serialization import Codec, serialize

TICK_SECS = 0.05
RECORD_SECS = 5.0
START_SECS = 3.0
#: Supervisors of one session, unless they die together.
PER_SESSION = 600
#: Bytes of a Pacemaker's acknowledgement.
ACKNOWLEDGED = 19
ANSWER_SECS = 60
#: Others go first, and pulses still come in time.
NICENESS = 10


class Launch(NamedTuple):
    node: str
    port: int
    claim: tuple[int, int]
    is_released: bool


@dataclass(eq=False)
class Supervisor:
    """A supervisor; `running` has claim and frame of the worker on each port."""

    machine: registration.Machine
    number: int
    started: float = 0.0
    client: object = None
    #: Topology, port, and whether it is released, by claim.
    launches: dict = field(default_factory=dict)
    running: dict = field(default_factory=dict)
    #: Ports with a worker to start.
    starting: dict = field(default_factory=dict)
    stopped: dict = field(default_factory=dict)
    frames: tuple = ()
    pulsed_at: float = 0.0
    is_up: bool = False

    @property
    def path(self):
        return cluster.ROOT + paths.supervisor(self.machine.supervisor_id)

    def record(self):
        status = registration.MachineStatus(
            used_ports=frozenset(self.running),
            stopped={port: LaunchClaim(*claim) for port, claim in self.stopped.items()},
        )
        uptime = time.monotonic() - self.started
        return serialize(
            registration.info(self.machine, status, now=time.time(), uptime_secs=uptime)
        )

    def settle(self):
        """Stop what is no longer wanted; return whether the record has to change at once."""
        wanted, released = {}, {}
        for claim, (storm_id, port, is_released) in self.launches.items():
            if is_released:
                released[port] = max(claim, released.get(port, claim))
            elif port not in wanted or wanted[port][0] < claim:
                wanted[port] = claim, storm_id
        ended = [
            port for port, one in self.running.items() if wanted.get(port, (None,))[0] != one[0]
        ]
        for port in ended:
            del self.running[port]
        self.starting = {port: one for port, one in wanted.items() if port not in self.running}
        stopped = {
            port: claim
            for port, claim in released.items()
            if port not in self.running or self.running[port][0] > claim
        }
        is_changed = bool(ended) or stopped != self.stopped
        self.stopped = stopped
        self._renew()
        return is_changed

    def start(self):
        for port, (claim, storm_id) in self.starting.items():
            self.running[port] = claim, frame(storm_id, self.machine.supervisor_id, port)
        self.starting = {}
        self._renew()

    def _renew(self):
        self.frames = tuple(one for _, one in self.running.values())


def frame(storm_id, node, port):
    pulse = Pulse(paths.workerbeat(storm_id, node, port), heartbeat(storm_id))
    return encode(Message(MessageType.SEND_PULSE, pulse=pulse, message_id=1))


@cache
def heartbeat(storm_id):
    """Return a heartbeat of six executors."""
    stats = next(iter(filling.heartbeat(0, 0).executor_stats.values()))
    executors = {ExecutorInfo(n, n): stats for n in range(1, cluster.EXECUTORS_PER_QUERY + 1)}
    return serialize(ClusterWorkerHeartbeat(storm_id, executors, int(time.time()), 300))


class Fleet:
    """The supervisors of a cluster, and the thread that keeps their records and workers."""

    def __init__(self, settings):
        self._zookeeper_port = settings["conf"]["storm.zookeeper.port"]
        self.supervisors = [
            Supervisor(cluster.machine(number), number) for number in range(settings["supervisors"])
        ]
        self._by_id = {each.machine.supervisor_id: each for each in self.supervisors}
        self._lock = threading.Lock()
        self._dirty = set()
        self._to_start = set()
        self._pending = deque()
        self.written = self.failed = 0
        #: Of assignments, as the subscription tells them.
        self._changes = deque()
        self._turn = 0
        self._sessions = []
        conf = cluster.loaded(settings["conf"])
        self._state = backends.connect(conf)
        codec = Codec.from_conf(conf)
        whole = records_below(paths.ASSIGNMENTS, codec)

        def decode(path, data):
            return launches_of(whole.decode(path, data))

        self._assignments = Subscription(
            self._state, [Subtree(whole.path, whole.depth, decode)], name="assignments"
        )
        self._assignments.add_listener(self._changes.extend)
        self._assignments.start()
        self._thread = threading.Thread(target=self._run, name="supervisors", daemon=True)
        self._thread.start()

    def up(self, first, count):
        """Register supervisors, in sessions of their own; return when the last was."""
        for begin in range(first, first + count, PER_SESSION):
            group = self.supervisors[begin : min(begin + PER_SESSION, first + count)]
            self._up(group)
        return {"at": time.time()}

    def _up(self, group):
        context = cluster.kazoo_client(self._zookeeper_port)
        client = context.__enter__()
        self._sessions.append((group, context))
        with self._lock:
            made = []
            for each in group:
                each.client, each.started, each.is_up = client, time.monotonic(), True
                each.settle()
                self._to_start.add(each)
                made.append(client.create_async(each.path, each.record(), ephemeral=True))
        for one in made:
            one.get(timeout=ANSWER_SECS)

    def die(self, first, count, pulses):
        """End supervisors with their workers; return when, and when the last pulse was sent."""
        group = set(self.supervisors[first : first + count])
        with self._lock, pulses.lock:
            for each in group:
                each.is_up, each.frames, each.running, each.starting = False, (), {}, {}
            last = max(each.pulsed_at for each in group)
            at = time.time()
        ended = [one for one in self._sessions if set(one[0]) <= group]
        for one in ended:
            self._sessions.remove(one)
            one[1].__exit__(None, None, None)
        return {"at": at, "last_pulse": last, "gone": time.time()}

    def status(self):
        with self._lock:
            return {
                "running": sum(len(each.running) for each in self.supervisors if each.is_up),
                "starting": sum(len(each.starting) for each in self.supervisors if each.is_up),
                "up": sum(each.is_up for each in self.supervisors),
                "launches_on_dead": sum(
                    len(each.launches) for each in self.supervisors if not each.is_up
                ),
                "records_written": self.written,
                "records_failed": self.failed,
            }

    def close(self):
        self._assignments.close()
        for _, context in self._sessions:
            context.__exit__(None, None, None)
        self._state.close()

    def _run(self):
        due = time.monotonic()
        while True:
            with self._lock:
                self._follow()
                self._write()
            due = max(due + TICK_SECS, time.monotonic() - 1.0)
            time.sleep(max(0.0, due - time.monotonic()))

    def _follow(self):
        touched = set()
        while self._changes:
            change = self._changes.popleft()
            storm_id = change.path.rpartition("/")[2]
            for launch in change.before.value or () if change.before else ():
                each = self._by_id[launch.node]
                each.launches.pop(launch.claim, None)
                touched.add(each)
            for launch in change.after.value or () if change.after else ():
                each = self._by_id[launch.node]
                each.launches[launch.claim] = storm_id, launch.port, launch.is_released
                touched.add(each)
        for each in touched:
            if each.is_up:
                if each.settle():
                    self._dirty.add(each)
                self._to_start.add(each)

    def _write(self):
        self._turn += 1
        turns = round(START_SECS / TICK_SECS)
        for each in [e for e in self._to_start if (e.number + self._turn) % turns == 0]:
            self._to_start.discard(each)
            if each.is_up and each.starting:
                each.start()
                self._dirty.add(each)
        turns = round(RECORD_SECS / TICK_SECS)
        self._dirty.update(self.supervisors[-self._turn % turns :: turns])
        for each in self._dirty:
            if each.is_up:
                self._pending.append(each.client.set_async(each.path, each.record()))
                self.written += 1
        self._dirty.clear()
        while self._pending and self._pending[0].ready():
            self.failed += not self._pending.popleft().successful()


def launches_of(assignment):
    return [
        Launch(one.node, one.port, (one.claim.epoch, one.claim.counter), bool(one.released))
        for one in assignment.launches or ()
    ]


class Pulses:
    """The thread that sends the pulses of all running workers, each once a period.

    A connection to each Pacemaker carries those of half of the supervisors.
    """

    def __init__(self, supervisors, ports, period_secs):
        self.lock = threading.Lock()
        self.sent = self.late = 0
        self.fault = ""
        self._supervisors = supervisors
        self._links = [socket.create_connection((cluster.HOST, port), 10) for port in ports]
        self._turns = max(1, round(period_secs / TICK_SECS))
        self._thread = threading.Thread(target=self._run, name="pulses", daemon=True)
        self._thread.start()

    def status(self):
        return {"pulses_sent": self.sent, "pulses_late": self.late, "pulses_fault": self.fault}

    def _run(self):
        try:
            due, turn = time.monotonic(), 0
            while True:
                self._send(self._supervisors[turn % self._turns :: self._turns])
                turn += 1
                due += TICK_SECS
                late = time.monotonic() - due
                if late > 1.0:
                    self.late += 1
                    due = time.monotonic()
                time.sleep(max(0.0, -late))
        except Exception as error:
            self.fault = repr(error)
            raise

    def _send(self, supervisors):
        with self.lock:
            counts = []
            for place, link in enumerate(self._links):
                mine = [e for e in supervisors if e.number // 2 % len(self._links) == place]
                frames = [one for each in mine for one in each.frames]
                counts.append(len(frames))
                link.sendall(b"".join(frames))
            for link, count in zip(self._links, counts, strict=True):
                left = count * ACKNOWLEDGED
                while left:
                    got = len(link.recv(min(left, 1 << 16)))
                    if not got:
                        raise ConnectionError("a Pacemaker closed the connection")
                    left -= got
            now = time.time()
            for each in supervisors:
                each.pulsed_at = now
            self.sent += sum(counts)


def main():
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        # If Linux shares the cores among sessions, this session has a low priority, too.
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    settings = json.loads(sys.argv[1])
    fleet = Fleet(settings)
    pulses = Pulses(fleet.supervisors, settings["pacemakers"], settings["beat_secs"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        match command.pop("do"):
            case "up":
                answer = fleet.up(**command)
            case "die":
                answer = fleet.die(**command, pulses=pulses)
            case "status":
                answer = {**fleet.status(), **pulses.status()}
        print(json.dumps(answer), flush=True)
    fleet.close()


if __name__ == "__main__":
    main()
