"""A small Nimbus for a client's tests: it keeps topologies as Nimbus does, and runs none.

Nothing in it depends on a clock: what takes its time takes so many looks of the client.
"""

import io
import itertools
import json
from contextlib import contextmanager

from stormkeeper.errors import StateError
from stormkeeper.thrift.nimbus import (
    AlreadyAliveException,
    ClusterSummary,
    CommonAggregateStats,
    ComponentAggregateStats,
    Nimbus,
    NotAliveException,
    NumErrorsChoice,
    TopologyInfo,
    TopologyPageInfo,
    TopologySummary,
    WorkerSummary,
)
from stormkeeper.thrift.records import ErrorInfo, NimbusSummary
from stormkeeper.topology.package import archive
from support.rpc import served


class Standing:
    """A topology: its conf, what it is made of, and how it stands.

    `looks` is how many more looks of the client find it unchanged, before `then` is called.
    """

    def __init__(self, storm_id, conf, structure=None):
        self.id = storm_id
        self.conf = conf
        self.structure = structure
        self.status = "ACTIVE"
        self.sched_status = "Fully Scheduled"
        self.health = None
        self.workers = [WorkerSummary("s1", "node-1", 6700, num_executors=2, uptime_secs=5)]
        both = CommonAggregateStats(num_executors=2, num_tasks=2)
        self.components = {
            "id_to_spout_agg_stats": {"lines": ComponentAggregateStats(common_stats=both)},
            "id_to_bolt_agg_stats": {},
        }
        self.looks = 0
        self.then = None

    def errs(self, text, secs=17):
        """Have an error reported of its one spout."""
        self.components["id_to_spout_agg_stats"]["lines"].last_error = ErrorInfo(text, secs)

    @property
    def name(self):
        return self.id.rsplit("-", 2)[0]

    def look(self):
        if self.then is not None:
            self.looks -= 1
            if self.looks < 0:
                then, self.then = self.then, None
                then()


class SmallNimbus:
    """A handler of Nimbus's calls; `leader` may be another one's.

    What it does not have fails as anything fails in Nimbus that no method declares.
    """

    def __init__(self):
        self.calls = []
        #: What rebalances were to change in confs.
        self.overrides = []
        #: Who leads, as host and port; None while nobody does.
        self.leader = None
        self.disk_fault = None
        #: Of Stormkeeper; None: it is Storm's own.
        self.release = "0.1.0"
        self.topologies = {}
        self.supervisors = []
        #: How many looks what is asked for takes.
        self.looks = 1
        #: The error of what is submitted, when it is placed.
        self.fails_with = None
        self.uploads = {}
        #: What was submitted, by name.
        self.packages = {}
        self.credentials = {}
        #: Whose checkpoints are to be removed.
        self.purged = []
        self._numbers = itertools.count(1)

    def __getattr__(self, name):
        if name not in Nimbus.methods:
            raise AttributeError(name)

        def refuse(*_):
            self.calls.append((name,))
            raise StateError(f"this small Nimbus does not know how to {name}")

        return refuse

    def has(self, name, **conf):
        """Have a topology that runs; return it."""
        self.topologies[name] = standing = Standing(f"{name}-{next(self._numbers)}-17", conf)
        return standing

    def cut(self):
        """End all connections, as if this Nimbus had died; new ones are taken."""
        for channel in list(self.server._channels):
            self.server.loop.call_soon_threadsafe(channel.abort, "test")

    def getLeader(self):  # noqa: N802
        if self.leader is None:
            return None
        ours = {"disk_fault": self.disk_fault, "stormkeeper": self.release}
        return NimbusSummary(*self.leader, 1, True, "2.8.0", **ours)

    def isTopologyNameAllowed(self, name):  # noqa: N802
        return name not in self.topologies

    def beginFileUpload(self):  # noqa: N802
        location = f"/inbox/{next(self._numbers)}"
        self.uploads[location] = []
        return location

    def uploadChunk(self, location, chunk):  # noqa: N802
        self.uploads[location].append(chunk)

    def finishFileUpload(self, location):  # noqa: N802
        self.uploads[location] = b"".join(self.uploads[location])

    def submitTopologyWithOpts(self, name, location, conf, structure, options):  # noqa: N802
        self.calls.append(("submit", name, options.initial_status.name))
        self.credentials[name] = options.creds and options.creds.creds
        if name in self.topologies:
            raise AlreadyAliveException(f"{name} is already alive")
        self.packages[name] = archive.read_package(io.BytesIO(self.uploads[location]))
        standing = self.has(name, **json.loads(conf))
        standing.structure = structure
        workers, standing.workers, standing.sched_status = standing.workers, [], None
        standing.looks = self.looks

        def place():
            standing.workers, standing.sched_status = workers, "Fully Scheduled"
            if self.fails_with is not None:
                standing.errs(self.fails_with)

        standing.then = place

    def killTopologyWithOpts(self, name, options):  # noqa: N802
        self.calls.append(("kill", name, options.wait_secs))
        self.purged += [name] if options.purge else []
        standing = self._standing(name)
        standing.status, standing.looks = "KILLED", self.looks
        standing.then = lambda: self.topologies.pop(name)

    def activate(self, name):
        self._set(name, "ACTIVE")

    def deactivate(self, name):
        self._set(name, "INACTIVE")

    def _set(self, name, status):
        standing = self._standing(name)
        if standing.status in ("KILLED", "REBALANCING"):
            raise StateError(f"{name} is {standing.status}")
        standing.looks = self.looks

        def change():
            standing.status = status

        standing.then = change

    def rebalance(self, name, options):
        self.calls.append(
            ("rebalance", name, options.wait_secs, options.num_workers, options.num_executors)
        )
        self.overrides.append(json.loads(options.topology_conf_overrides or "{}"))
        standing = self._standing(name)
        before, standing.status, standing.looks = standing.status, "REBALANCING", self.looks

        def change():
            standing.status = before

        standing.then = change

    def getTopologySummaries(self):  # noqa: N802
        return [self._summary(standing) for standing in self.topologies.values()]

    def getTopologySummaryByName(self, name):  # noqa: N802
        standing = self._standing(name)
        standing.look()
        return self._summary(self._standing(name))

    def getTopologyConf(self, storm_id):  # noqa: N802
        return json.dumps({"topology.message.timeout.secs": 30} | self._by_id(storm_id).conf)

    def getTopologyPageInfo(self, storm_id, window, include_sys):  # noqa: N802
        assert (window, include_sys) == (":all-time", False)
        standing = self._by_id(storm_id)
        for worker in standing.workers:
            worker.uptime_secs += 1  # they beat on
        return TopologyPageInfo(
            standing.id,
            name=standing.name,
            uptime_secs=17,
            status=standing.status,
            owner="alice",
            sched_status=standing.sched_status,
            replication_count=2,
            workers=standing.workers,
            num_workers=len(standing.workers),
            health=standing.health,
            **standing.components,
        )

    def getTopologyInfoByNameWithOpts(self, name, options):  # noqa: N802
        assert options.num_err_choice == NumErrorsChoice.ONE
        standing = self._standing(name)
        stats = {id_: each for kind in standing.components.values() for id_, each in kind.items()}
        errors = {id_: [each.last_error] for id_, each in stats.items() if each.last_error}
        return TopologyInfo(standing.id, name, 17, [], standing.status, errors)

    def getClusterInfo(self):  # noqa: N802
        return ClusterSummary(self.supervisors, self.getTopologySummaries(), [self.getLeader()])

    def _standing(self, name):
        try:
            return self.topologies[name]
        except KeyError:
            raise NotAliveException(f"{name} is not alive") from None

    def _by_id(self, storm_id):
        return next(each for each in self.topologies.values() if each.id == storm_id)

    def _summary(self, standing):
        return TopologySummary(
            standing.id,
            standing.name,
            num_tasks=4,
            num_executors=2,
            num_workers=len(standing.workers),
            uptime_secs=17,
            status=standing.status,
            sched_status=standing.sched_status,
            owner="alice",
            replication_count=2,
            health=standing.health,
        )


@contextmanager
def serving(nimbus):
    """Yield where a small Nimbus listens, as `host:port`; it leads."""
    with served(nimbus, service=Nimbus) as (server, place):
        nimbus.leader = nimbus.leader or place
        nimbus.server = server
        yield "{}:{}".format(*place)
