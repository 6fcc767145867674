"""A cluster inside the test's process: real Nimbuses and supervisors, on the store in memory.

Workers are stand-ins (`support.stand_in_worker`). The Nimbuses' clock runs, and a test may move it,
so that nobody waits for a deadline.
"""

import json
import re
import threading
import time
import uuid

from stormkeeper import conf
from stormkeeper.daemon.children import RUN_MARK, end_marked
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.nimbus.cleanup import CheckpointRetention, Cleaner
from stormkeeper.nimbus.cluster_status import ClusterStatusTracker
from stormkeeper.nimbus.round import Timeouts
from stormkeeper.nimbus.scheduler import LeaderDuties, Scheduler
from stormkeeper.nimbus.submitted import SubmittedCode, TopologyCache
from stormkeeper.state import leader_lock
from stormkeeper.state.backends import NodeHeartbeats
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor import process
from stormkeeper.supervisor.disk import Directories, LocalState
from stormkeeper.thrift.records import KillOptions
from stormkeeper.thrift.serialization import Codec
from support import stand_in_worker
from support.nimbus_service import NimbusService
from support.stores import MemoryStore
from support.supervisors import QUICK
from support.waiting import DEADLINE_SECS, until

#: When a silent worker is dead, in seconds; and what is longer than any test.
DEAD_SECS, HOUR = 600.0, 3600.0

#: A topology of one query, which one worker runs.
GRAPH = {"words": ((), 2), "counts": (("words",), 3)}
QUERY = "counts"


class Clock:
    """Seconds since 1970, which run, and which a test lets pass at once."""

    def __init__(self):
        self._offset = time.time() - time.monotonic()

    def __call__(self):
        return self._offset + time.monotonic()

    def pass_by(self, secs):
        self._offset += secs


class Master(NimbusService):
    """A Nimbus: its service, and its scheduling while it leads."""

    def __init__(self, folder, storm, clock):
        super().__init__(folder, storm, clock)
        self._status = ClusterStatusTracker()
        self.scheduler = Scheduler(
            storm,
            TopologyCache(SubmittedCode(self.code.store), self.conf),
            Timeouts(HOUR, DEAD_SECS, LivenessLimits(DEAD_SECS, DEAD_SECS), HOUR),
            self._status,
            conf_changes=self.conf_changes,
            master_code_dir=str(folder),
            clock=clock,
        )
        retention = CheckpointRetention(self.submissions.continued, kept_secs=None, clock=clock)
        cleaner = Cleaner(
            storm, self.submissions.ids, retention, period_secs=HOUR, kept_secs=HOUR, clock=clock
        )
        self._duties = LeaderDuties(self.scheduler, cleaner, self._status)

    @property
    def status(self):
        """What it sees of the cluster."""
        return self._status.status

    def leadership(self):
        return self._duties.current()

    def _elected(self, leader):
        self._duties.begin(leader)
        super()._elected(leader)

    def _deposed(self):
        self._duties.end()
        super()._deposed()

    def wait(self, secs):
        """Have it look at the cluster, and again when as many seconds have passed."""
        # One may have begun before whatever it is to see.
        after_next = self.status.rounds + 2
        until(lambda: self.scheduler.wake() or self.status.rounds >= after_next)
        self.clock.pass_by(secs)
        self.scheduler.wake()

    def kill(self, name, wait_secs=0):
        self.handler.killTopologyWithOpts(name, KillOptions(wait_secs=wait_secs))

    def assignment(self, storm_id):
        return self.storm.assignment_info(storm_id)

    def assigned(self, storm_id, node=None):
        """Wait until the one query of a topology has a worker, on that node; return its launch."""

        def found():
            launches = getattr(self.assignment(storm_id), "launches", None) or []
            return [one for one in launches if not one.released and node in (None, one.node)]

        return until(found)[0]


class Stop:
    """Says that a daemon is to stop, as signals do."""

    def __init__(self):
        self._asked = threading.Event()
        self.ask, self.wait = self._asked.set, self._asked.wait

    @property
    def stopped(self):
        return self._asked.is_set()


class Machine:
    """A supervisor on a folder, from `start` to `stop`; its workers go on without it."""

    def __init__(self, folder, open_session, ports):
        self._conf = conf.defaults().with_values(
            {
                **QUICK,
                "storm.local.dir": str(folder),
                "supervisor.slots.ports": list(ports),
                "supervisor.memory.capacity.mb": 100_000,
                "supervisor.monitor.frequency.secs": 0.1,
                "supervisor.worker.shutdown.sleep.secs": 0,
            }
        )
        self._open = open_session
        self.directories = Directories.from_conf(self._conf)
        self._stop = self._thread = None
        self.start()

    def start(self):
        self.storm = StormClusterState(self._open(), Codec())
        self.state = LocalState(self.directories.local_state)
        self.id = self.state.supervisor_id("127.0.0.1")
        self._stop = Stop()
        self._thread = threading.Thread(target=self._run, name="machine", daemon=True)
        self._thread.start()
        until(lambda: self.record)

    def stop(self):
        self._stop.ask()
        self._thread.join(DEADLINE_SECS)
        assert not self._thread.is_alive()

    def _run(self):
        with self.state:
            process._serve(self._conf, self._stop, self.directories, self.state, self.storm)
        self.storm.disconnect()

    @property
    def record(self):
        return self.storm.supervisor_info(self.id)

    def noted(self, port):
        """What is noted on this machine of the worker in a slot; None where there is none."""
        slot = self.state.load().get(port)
        return None if slot is None else slot.worker

    def workers(self):
        """The folders of workers."""
        return [*(self.directories.supervisor.parent / "workers").iterdir()]

    def log(self, storm_id, port):
        file = self.directories.log(storm_id, port)
        return file.read_text() if file.exists() else ""

    def started(self, storm_id, port, count=1):
        """Wait for the worker that is started as the `count`-th one in a slot; return its pid."""

        def pids():
            return [
                int(pid) for pid in re.findall(r'STARTED {"pid": (\d+)', self.log(storm_id, port))
            ]

        return until(lambda: pids()[count - 1 :])[0]


class InnerCluster:
    """Masters and machines, and what topologies are submitted with."""

    def __init__(self, folder):
        self._folder = folder
        self._mark = uuid.uuid4().hex
        self._stand_in = stand_in_worker.folder(folder / "stand-in")
        self._masters, self._machines = [], []
        self.store = MemoryStore()
        self.clock = Clock()
        self.storm = self._session()

    def _session(self):
        session = self.store.open()
        return StormClusterState(
            session, Codec(), heartbeats=NodeHeartbeats(session, clock=self.clock)
        )

    def master(self):
        """Start a Nimbus, which leads as soon as no other one does."""
        folder = self._folder / f"master-{len(self._masters)}"
        self._masters.append(Master(folder, self._session(), self.clock))
        if len(self._masters) == 1:
            self._masters[0].lead()
        return self._masters[-1]

    def hand_over(self, master, heir):
        """Have a master step down for another one, once that has the code."""
        heir.elector.add_to_leader_lock_queue()
        until(lambda: len(leader_lock.queue(self.storm.state)) == 2)
        master.elector.remove_from_leader_lock_queue()
        until(lambda: heir.leader is not None and master.leader is None)

    def machine(self, *ports):
        """Start a supervisor."""
        folder = self._folder / f"machine-{len(self._machines)}"
        self._machines.append(Machine(folder, self.store.open, ports or (6700,)))
        return self._machines[-1]

    def conf(self, **values):
        """The configuration of a topology whose workers are stand-ins; ``_`` stands for dots."""
        environment = {"PYTHONPATH": str(self._stand_in), RUN_MARK: self._mark}
        given = {"topology.environment": environment, "stand.in.order": str(self._folder / "order")}
        return json.dumps(given | {key.replace("_", "."): value for key, value in values.items()})

    def close(self):
        for each in self._machines:
            each.stop()
        for each in self._masters:
            each.close()
        until(lambda: not end_marked(self._mark, settle_secs=0))
        self.storm.disconnect()
        self.store.close()
