"""Nimbus's service as it runs in its process, but for scheduling; and what is submitted to it."""

import io
import threading
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from stormkeeper import conf
from stormkeeper.blobs import peers
from stormkeeper.blobs.distributor import BlobSettings, CodeDistributor
from stormkeeper.daemon.sockets import listen
from stormkeeper.errors import NotLeaderError
from stormkeeper.nimbus import process
from stormkeeper.nimbus.elector import Elector
from stormkeeper.nimbus.lifecycle import ConfChanges
from stormkeeper.nimbus.readiness import Candidate
from stormkeeper.nimbus.scheduler import Leadership
from stormkeeper.nimbus.service.context import ServiceContext, Submissions
from stormkeeper.nimbus.submitted import SubmittedCode
from stormkeeper.paths import NimbusId
from stormkeeper.rpc.server import ServerLimits, ThriftServer
from stormkeeper.thrift.nimbus import Nimbus
from stormkeeper.thrift.records import NimbusSummary
from stormkeeper.topology import description
from stormkeeper.topology.package import archive
from stormkeeper.topology.package.code import collect
from stormkeeper.topology.topology import ComponentDescription
from support.nimbus_values import ours
from support.packages import MADE_WITH, SCRIPT, tree
from support.topologies import make
from support.waiting import until

#: What nobody is to read.
SECRET = "hunter2"

#: A topology of two queries: its spout feeds both.
GRAPH = {
    "lines": ((), 1),
    "words": (("lines",), 2),
    "count": (("words",), 1),
    "raw": (("lines",), 1),
}


class Clock:
    """Seconds since 1970, which a test moves."""

    def __init__(self, now=1_700_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


class NimbusService:
    """One Nimbus on loopback, that leads when its elector says so.

    Parameters
    ----------
    folder
        For its blobs.
    storm
        Its session; closed with it.
    clock
        Its clock; one that stands still, if left out.
    port
        Where it listens; 0 for any free port.
    values
        Configuration.
    """

    def __init__(self, folder, storm, clock=None, port=0, **values):
        self.conf = conf.defaults().with_values(
            {"topology.max.replication.wait.time.sec": 60, **values}
        )
        self._listener = listen("127.0.0.1", port, keys="", backlog=64)
        self.port = self._listener.getsockname()[1]
        self.id = NimbusId("127.0.0.1", self.port, 0)
        self.storm = storm
        self.clock = clock or Clock()
        self.told = {}
        #: The topologies that it is said to have removed, with their owners.
        self.removed = []
        self.woken = threading.Event()
        #: What it leads with.
        self.leader = None
        self.submissions = Submissions(self.conf["nimbus.thrift.threads"])
        self.code = CodeDistributor(
            storm,
            self.id,
            peers.peer_connector(self.conf),
            BlobSettings(folder / "blobs", folder / "inbox"),
            leader=lambda: self.leader,
            submitted=self.submissions.ids,
        )
        self.conf_changes = ConfChanges(self.code)
        candidate = Candidate(
            storm,
            self.code.sync,
            self.id,
            bases=lambda: storm.view.caught_up().bases,
            elected=self._elected,
            deposed=self._deposed,
        )
        self.elector = Elector(storm, self.id, candidate)
        self.submitted = SubmittedCode(self.code.store)
        self.handler = process.service_handler(
            ServiceContext(
                conf=self.conf,
                storm=storm,
                code=self.code,
                conf_changes=self.conf_changes,
                submitted=self.submitted,
                elector=self.elector,
                leadership=self.leadership,
                submissions=self.submissions,
                sched_status=lambda: self.told if self.leader else {},
                removed=lambda user: [id_ for id_, owner in self.removed if user in (None, owner)],
                clock=self.clock,
            )
        )
        self.server = ThriftServer(Nimbus, self.handler, ServerLimits.of(self.conf), name="nimbus")
        self.server.start(self._listener)
        self.code.start()
        began = int(self.clock()) - 100
        storm.add_nimbus_host(NimbusSummary(self.id.host, self.port, began, False, "0.1.0", 0))

    def leadership(self):
        if self.leader is None:
            raise NotLeaderError("this Nimbus does not lead")
        return Leadership(self.leader, self.woken.set)

    def lead(self):
        """Have it lead, and wait until it does."""
        self.elector.add_to_leader_lock_queue()
        until(lambda: self.leader is not None and self.elector.is_leader)

    def _elected(self, leader):
        self.leader = leader

    def _deposed(self):
        self.leader = None

    def submit(self, name, graph=None, conf="{}", options=None):
        """Submit a topology in this process, and return its id."""
        described = describe(name, graph)
        location = self.handler.beginFileUpload()
        self.handler.uploadChunk(location, package(self.code.store.folder.parent, described))
        self.handler.finishFileUpload(location)
        topology = topology_of(described)
        if options is None:
            self.handler.submitTopology(name, location, conf, topology)
        else:
            self.handler.submitTopologyWithOpts(name, location, conf, topology, options)
        return self.handler.getTopologySummaryByName(name).id

    def close(self):
        self.server.stop(0.0)
        self.handler.close()
        self._listener.close()
        self.elector.close()
        self.code.close()
        self.storm.disconnect()


@contextmanager
def nimbuses(folder, *storms, **values):
    """Yield a Nimbus for each session; the first one leads."""
    running = []
    try:
        for number, storm in enumerate(storms):
            running.append(NimbusService(folder / str(number), storm, **values))
        running[0].lead()
        yield running
    finally:
        for each in reversed(running):
            each.close()


def describe(name, graph=None):
    """The description of a topology; of a plain script where `graph` is ``"script"``."""
    if graph == "script":
        return description.of_script(Path(f"{name}.py"))
    return replace(description.of_topology(make(graph or GRAPH)), name=name)


def package(folder, described):
    """The bytes of a package that has a description."""
    place = tree(folder / f"code of {described.name}", {"topology.py": SCRIPT})
    file = io.BytesIO()
    archive.write(file, archive.PackageContents(collect(place, place), described), MADE_WITH)
    return file.getvalue()


def plain_topology(described):
    """The ``StormTopology`` of a description, as plain values of `support.nimbus_ids`."""
    components = described.components or (ComponentDescription(described.name, "spout", (), 1),)
    code = {"shell": {"execution_command": "python", "script": "code/topology.py"}}
    parts = {
        kind: [
            (
                one.id,
                {
                    f"{kind}_object": code,
                    "common": {
                        "inputs": [
                            ({"componentId": source, "streamId": "default"}, {"shuffle": {}})
                            for source in sorted(set(one.inputs))
                        ],
                        "streams": [("default", {"output_fields": [], "direct": False})],
                        "parallelism_hint": one.parallelism,
                    },
                },
            )
            for one in components
            if one.kind == kind
        ]
        for kind in ("spout", "bolt")
    }
    return {
        "spouts": parts["spout"],
        "bolts": parts["bolt"],
        "state_spouts": [],
        "storm_version": "0.1.0",
    }


def topology_of(described):
    """The same as our record."""
    return ours("StormTopology", plain_topology(described))
