"""What a cluster of 300 topologies keeps, as Storm writes it: gzip, ids of usual lengths."""

from stormkeeper import paths
from stormkeeper.thrift.records import (
    Assignment,
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    NodeInfo,
    StormBase,
    TopologyStatus,
    WorkerResources,
)
from stormkeeper.thrift.serialization import serialize

ROOT = "/storm"
TOPOLOGIES = 300
WORKERS = 24
#: What runs in a worker at least: an executor of some component, and its acker.
EXECUTORS_PER_WORKER = 2
#: Supervisors, each with 24 slots; a topology's workers are spread over as many of them.
SUPERVISORS = 300
WATCHED = 10_000
PLAIN = 2_000
PLAIN_BYTES = 1_024
WINDOWS = ("600", "10800", "86400", ":all-time")
STARTED = 1_700_000_000

WATCHED_PATHS = [f"/watched/n{number:05d}" for number in range(WATCHED)]
PLAIN_PATHS = [f"/plain/n{number:04d}" for number in range(PLAIN)]

#: Requests under way at once while all is made.
_BATCH = 1_000


def storm_id(number):
    return f"topology-{number:03d}-{number}-{STARTED + number}"


def storm_ids():
    return [storm_id(number) for number in range(TOPOLOGIES)]


def slots(number, supervisors=SUPERVISORS):
    """Return the supervisor and the port of each worker of a topology."""
    return [
        (supervisor_id((number + 7 * worker) % supervisors), 6700 + number % 24)
        for worker in range(WORKERS)
    ]


def assignment(number, supervisors=SUPERVISORS):
    """Return where a topology runs; as in Java's maps, a worker's executors are apart."""
    places = slots(number, supervisors)
    where = [NodeInfo(node, {port}) for node, port in places]
    executors = [(task, task) for task in range(1, WORKERS * EXECUTORS_PER_WORKER + 1)]
    resources = {
        "cpu.pcore.percent": 20.0,
        "offheap.memory.mb": 0.0,
        "onheap.memory.mb": 256.0,
    }
    return Assignment(
        master_code_dir="/var/storm/local",
        node_host={node: f"host-{node[-3:]}.example.org" for node, _ in places},
        executor_node_port={
            executor: where[place % WORKERS] for place, executor in enumerate(executors)
        },
        executor_start_time_secs=dict.fromkeys(executors, STARTED + number),
        worker_resources={
            node: WorkerResources(256.0, 0.0, 20.0, 0.0, 0.0, resources, {}) for node in where
        },
        total_shared_off_heap={node: 0.0 for node, _ in places},
        owner="storm",
    )


def storm_base(number):
    components = ("lines", "words", "counts", "totals", "__acker", "__system")
    return StormBase(
        name=f"topology-{number:03d}",
        status=TopologyStatus.ACTIVE,
        num_workers=WORKERS,
        component_executors=dict.fromkeys(components, WORKERS // 4),
        launch_time_secs=STARTED + number,
        owner="storm",
        component_debug={},
        principal="storm",
        topology_version="2.8.1",
    )


def heartbeat(number, worker):
    by_input = {GlobalStreamId(name, "default"): 1_234_567 + worker for name in ("lines", "words")}
    averages = {GlobalStreamId(name, "default"): 0.125 for name in ("lines", "words")}
    counts = {window: dict(by_input) for window in WINDOWS}
    means = {window: dict(averages) for window in WINDOWS}
    emitted = {window: {"default": 7_654_321} for window in WINDOWS}
    stats = ExecutorStats(
        emitted=emitted,
        transferred=emitted,
        specific=ExecutorSpecificStats(
            bolt=BoltStats(
                acked=counts, failed={}, process_ms_avg=means, executed=counts, execute_ms_avg=means
            )
        ),
        rate=1.0,
    )
    first = worker * EXECUTORS_PER_WORKER + 1
    executors = range(first, first + EXECUTORS_PER_WORKER)
    return ClusterWorkerHeartbeat(
        storm_id(number), {ExecutorInfo(e, e): stats for e in executors}, STARTED, 300
    )


def nodes():
    """Yield the path, without the root, and the value of every node, parents first."""
    yield "/", b"\x07"
    for top in (*paths.DIRECTORIES, "/watched", "/plain"):
        yield top, b"\x07"
    for number, name in enumerate(storm_ids()):
        yield paths.assignment(name), serialize(assignment(number))
        yield paths.storm(name), serialize(storm_base(number))
        yield paths.workerbeats(name), b"\x07"
        for worker, (node, port) in enumerate(slots(number)):
            yield paths.workerbeat(name, node, port), serialize(heartbeat(number, worker))
    for path in WATCHED_PATHS:
        yield path, b"0"
    for path in PLAIN_PATHS:
        yield path, bytes(PLAIN_BYTES)


def fill(client):
    """Make all nodes through a client of kazoo's; return how many there are."""
    count, pending = 0, []
    for path, data in nodes():
        pending.append(client.create_async((ROOT + path).rstrip("/"), data))
        count += 1
        if len(pending) >= _BATCH:
            pending = _settled(pending)
    _settled(pending)
    return count


def _settled(pending):
    for made in pending:
        made.get(timeout=60)
    return []


def supervisor_id(number):
    """An id as Storm makes them: a UUID and an address."""
    return f"3f9c27d1-4b1e-4c57-9d2a-7be0c1a5d{number:03d}-10.1.{number // 256}.{number % 256:03d}"
