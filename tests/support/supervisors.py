"""The real supervisor as a process, and a leader who gives it work: code, records, assignments."""

import gzip
import json
import time
import uuid

from stormkeeper import conf
from stormkeeper.blobs.distributor import BlobSettings, CodeDistributor
from stormkeeper.daemon.children import RUN_MARK, end_marked
from stormkeeper.errors import BlobNotFoundError
from stormkeeper.nimbus.scheduling import cluster
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.paths import NimbusId, Slot
from stormkeeper.state.storm import cluster as storm_cluster
from stormkeeper.state.storm.cluster import leader_state
from stormkeeper.supervisor import process_table
from stormkeeper.thrift.nimbus import BeginDownloadResult, KeyNotFoundException, Nimbus
from stormkeeper.thrift.records import NimbusSummary, StormBase, TopologyStatus
from stormkeeper.topology.plan import Claim
from support.daemon import DaemonProcess
from support.leaders import fence_of
from support.rpc import served
from support.waiting import until

PORT, OTHER_PORT = 6700, 6701

#: So often that tests need not wait.
QUICK = {
    "supervisor.heartbeat.frequency.secs": 0.5,
    "supervisor.monitor.frequency.secs": 0.5,
    "worker.heartbeat.frequency.secs": 0.2,
}


class CodeService:
    """The two methods of a Nimbus by which code is fetched."""

    def __init__(self):
        self.downloads = None

    def __getattr__(self, name):
        def refuse(*_):
            raise NotImplementedError(name)

        return refuse

    def beginBlobDownload(self, key, offset):  # noqa: N802
        try:
            begun = self.downloads.begin(key, offset or 0)
        except BlobNotFoundError as error:
            raise KeyNotFoundException(str(error)) from error
        return BeginDownloadResult(begun.version, begun.session, begun.size, begun.offset)

    def downloadBlobChunk(self, session):  # noqa: N802
        return self.downloads.chunk(session)


class Leader:
    """A Nimbus that leads: it has code, and writes what supervisors are to do.

    Parameters
    ----------
    folder
        Where it keeps code.
    settings
        Where ZooKeeper is.
    """

    def __init__(self, folder, settings):
        self._service = CodeService()
        self._served = served(self._service, Nimbus)
        _, place = self._served.__enter__()
        self.storm = storm_cluster.connect(conf.defaults().with_values(settings))
        nimbus_id = NimbusId(place[0], place[1], 0)
        self.storm.add_nimbus_host(NimbusSummary(place[0], place[1], 0, False, "1"))
        self.code = CodeDistributor(
            self.storm,
            nimbus_id,
            lambda _: None,
            BlobSettings(folder / "blobs", folder / "inbox"),
            leader=lambda: self.leader,
        )
        self._service.downloads = self.code.downloads
        fence = fence_of(self.storm.state)
        self.epoch = fence.epoch
        self.leader = leader_state(self.storm, fence)
        self._counter = 0
        #: The newest launches of each topology, by its id.
        self.launches = {}

    def close(self):
        self._served.__exit__(None, None, None)
        self.code.close()
        self.storm.disconnect()

    def submit(self, storm_id, package, topology_conf):
        """Have a topology: its code, from the file of a package, and its record."""
        package.seek(0)
        parts = {
            "stormjar.jar": package.read(),
            "stormcode.ser": b"",
            "stormconf.ser": gzip.compress(json.dumps(topology_conf).encode()),
        }
        self.code.upload(storm_id, parts)
        self.leader.activate_storm(storm_id, StormBase(storm_id, TopologyStatus.ACTIVE, 1))

    def assign(self, storm_id, node, port, *queries, memory_mb=0.0):
        """Launch queries of a topology in a slot, and nothing else of it; return the claim."""
        self._counter += 1
        claim = Claim(self.epoch, self._counter)
        self._write(
            storm_id,
            Launch(Slot(node, port), claim, queries, int(time.time()), memory_mb=memory_mb),
        )
        return claim

    def release(self, storm_id):
        """Have the worker of a topology stop."""
        [launch] = self.launches[storm_id]
        self._write(
            storm_id,
            Launch(
                *(launch.slot, launch.claim, launch.queries, launch.started_at, launch.memory_mb),
                is_released=True,
            ),
        )

    def remove(self, storm_id):
        """Have a topology no more."""
        self.leader.remove_storm(storm_id)

    def _write(self, storm_id, *launches):
        self.launches[storm_id] = launches
        record = cluster.assignment_record(launches, (), master_code_dir="", hosts={})
        self.leader.set_assignment(storm_id, record)


class SupervisorProcess(DaemonProcess):
    """``storm supervisor`` on a folder; started again, it is another process on the same folder."""

    def __init__(self, folder, settings):
        self.folder = folder
        self._mark = uuid.uuid4().hex
        values = {
            "storm.local.dir": str(folder),
            "supervisor.slots.ports": [PORT, OTHER_PORT],
            "supervisor.bind.host": "127.0.0.1",
            "logviewer.port": 0,
            **QUICK,
            **settings,
        }
        super().__init__("supervisor", "supervisor ready ", values, environ={RUN_MARK: self._mark})

    def configure(self, **values):
        """Change its configuration from the next start on; ``_`` stands for dots."""
        self._conf |= {key.replace("_", "."): value for key, value in values.items()}

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End it and all that it has started."""
        super().__exit__()
        until(lambda: not end_marked(self._mark, settle_secs=0))

    def worker_log(self, storm_id, port=PORT):
        return self.folder / "logs" / "workers-artifacts" / storm_id / str(port) / "worker.log"

    def starts(self, storm_id, port=PORT):
        """What each stand-in worker of a topology said when it was started."""
        try:
            log = self.worker_log(storm_id, port).read_text()
        except FileNotFoundError:
            return []
        whole = log.split("\n")[:-1]
        said = [line.removeprefix("STARTED ") for line in whole if line.startswith("STARTED ")]
        return [json.loads(line) for line in said]

    def started(self, storm_id, count=1, port=PORT):
        """Wait for the worker that is started as the `count`-th one; return what it said."""
        return until(lambda: self.starts(storm_id, port)[count - 1 :])[0]


def is_alive(pid):
    """Whether a process runs, and is not only waited for."""
    found = process_table.find(pid)
    return found is not None and not found.has_ended


def runs(process):
    """Return whether a process runs, not a later one with the same pid."""
    found = process_table.find(process.pid)
    return found is not None and found.id == process and not found.has_ended
