"""What is measured: what kazoo does with its own calls, and what ours does for the same."""

import gc
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from state import filling
from state.filling import ROOT
from stormkeeper import paths
from stormkeeper.state.storage import EventType, SetData
from stormkeeper.thrift.records import Assignment, StormBase
from stormkeeper.thrift.serialization import deserialize

#: Longest wait for anything, in seconds.
DEADLINE_SECS = 120

#: Calls one after the other, in the cells that measure such.
CALLS = 500
TRANSACTIONS = 20
OPERATIONS = 100

#: Each way, through the slow network: much longer than anything else takes.
DELAY_SECS = 0.1
TRIES = 3


@dataclass(frozen=True)
class Work:
    """What one run of a cell did: nodes touched, and bytes of their values."""

    nodes: int
    bytes: int


@dataclass(frozen=True)
class Cell:
    """One measurement; `sides` are who does it (``kazoo``, ``ours``), run in turn."""

    name: str
    sides: dict[str, Callable[[], Work]]
    repeats: int


@dataclass(frozen=True)
class World:
    """The clients of one round."""

    #: A `KazooClient`.
    kazoo: Any
    #: A `ClusterState` of the same server.
    ours: Any
    #: A `StormClusterState` on `ours`, and one whose heartbeats are in a Pacemaker.
    reads: Any
    pacemaker: Any
    #: Has another client set all watched nodes, and returns a wait for its end.
    setter: Callable[[], Callable[[], None]]

    @property
    def ids(self):
        return filling.storm_ids()


def measure(cell, turn):
    """Run a cell; return a row for each side, the medians of its repeats.

    `turn` says who begins: the others follow, and the next repeat begins with another.
    """
    names = list(cell.sides)
    secs = {name: [] for name in names}
    work = {}
    for repeat in range(cell.repeats):
        first = (turn + repeat) % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            began = time.perf_counter()
            work[name] = cell.sides[name]()
            secs[name].append(time.perf_counter() - began)
    return [row(cell.name, name, statistics.median(secs[name]), work[name]) for name in names]


def row(cell, of, secs, work=None, **more):
    work = work or Work(0, 0)
    return {
        "cell": cell,
        "of": of,
        "secs": round(secs, 6),
        "per_s": round(work.nodes / secs),
        "nodes": work.nodes,
        "bytes": work.bytes,
        "threads": None,
        **more,
    }


def cells(world, repeats):
    """Return the cells that two clients do in turn."""
    w = world
    return [
        Cell(
            "assignments-and-bases",
            {
                "kazoo": partial(_kazoo_folders, w, [paths.ASSIGNMENTS, paths.STORMS]),
                "ours": partial(_records, w),
                "ours-bytes": partial(_folders, w, [paths.ASSIGNMENTS, paths.STORMS]),
            },
            2 * repeats,
        ),
        Cell(
            "heartbeats-24",
            {
                "kazoo": partial(_kazoo_folders, w, [paths.workerbeats(w.ids[0])]),
                "ours": partial(_heartbeats, w.reads, w.ids[0]),
                "ours-bytes": partial(_heartbeat_bytes, w, w.ids[0]),
                "ours-pacemaker": partial(_heartbeats, w.pacemaker, w.ids[0]),
            },
            5 * repeats,
        ),
        Cell("get", {"kazoo": partial(_kazoo_get, w), "ours": partial(_get, w)}, repeats),
        Cell("set", {"kazoo": partial(_kazoo_set, w), "ours": partial(_set, w)}, repeats),
        Cell(
            "get-pipelined",
            {"kazoo": partial(_kazoo_get_many, w), "ours": partial(_get_many, w)},
            repeats,
        ),
        Cell(
            "children-pipelined",
            {"kazoo": partial(_kazoo_children, w), "ours": partial(_children, w)},
            repeats,
        ),
        Cell(
            f"transaction-{OPERATIONS}",
            {"kazoo": partial(_kazoo_transactions, w), "ours": partial(_transactions, w)},
            repeats,
        ),
    ]


def watches(world, turn, repeats):
    """Leave 10,000 watches and have them fire: a row for each side and half."""
    found = {}
    for repeat in range(repeats):
        sides = [_kazoo_watches, _watches]
        first = (turn + repeat) % len(sides)
        for side in sides[first:] + sides[:first]:
            gc.collect()
            for each in side(world):
                found.setdefault((each["cell"], each["of"]), []).append(each)
    return [
        row(cell, of, *_middle(rows), threads=max(each["threads"] for each in rows))
        for (cell, of), rows in found.items()
    ]


def _middle(rows):
    secs = statistics.median(each["secs"] for each in rows)
    return secs, Work(rows[0]["nodes"], rows[0]["bytes"])


def view(storm, repeats):
    """How long the view takes for its first reading, and for one when it is in sync."""

    def read():
        began = time.perf_counter()
        records = storm.view.caught_up()
        secs = time.perf_counter() - began
        found = len(records.assignments), len(records.bases)
        if {*found} != {filling.TOPOLOGIES}:
            raise RuntimeError(f"{found} assignments and bases are in the view")
        return secs, Work(sum(found), 0)

    first, work = read()
    again = statistics.median(read()[0] for _ in range(10 * repeats))
    return [row("records-first", "ours", first, work), row("records-again", "ours", again, work)]


def decoding(world, repeats):
    """How long it takes to decode the same records, without any network."""
    values = {
        cls: [node.data for node in world.ours.children_data(folder).values()]
        for cls, folder in ((Assignment, paths.ASSIGNMENTS), (StormBase, paths.STORMS))
    }
    rows = []
    for cls, data in values.items():
        secs = []
        for _ in range(repeats):
            gc.collect()
            began = time.perf_counter()
            for value in data:
                deserialize(cls, value)
            secs.append(time.perf_counter() - began)
        work = Work(len(data), sum(map(len, data)))
        rows.append(row(f"decode-{cls.__name__}", "ours", statistics.median(secs), work))
    return rows


def round_trips(far, far_pacemaker, ids, counted):
    """Count requests and round trips through a slow network.

    Parameters
    ----------
    far, far_pacemaker
        `StormClusterState`, and one with heartbeats in a Pacemaker, behind slow proxies.
    ids
        The topologies.
    counted
        ``requests`` of the proxies of both.
    """
    beats = paths.workerbeats(ids[0])
    some = list(map(paths.assignment, ids))
    more = some + list(map(paths.storm, ids))
    calls = {
        "heartbeats-24": (_all_with_values(far), beats, "ours"),
        "heartbeats-24-pacemaker": (_all_with_values(far_pacemaker), beats, "ours-pacemaker"),
        "read-300": (far.state.read_many, some, "ours"),
        "read-600": (far.state.read_many, more, "ours"),
        "children-data-300": (far.state.children_data, paths.ASSIGNMENTS, "ours"),
        "transaction-100": (partial(_transaction, far.state), 0, "ours"),
    }
    rows = []
    for name, (call, argument, of) in calls.items():
        call(argument)  # what is done once for a connection
        secs, requests = [], []
        for _ in range(TRIES):
            before, began = counted(), time.perf_counter()
            call(argument)
            secs.append(time.perf_counter() - began)
            requests.append(counted() - before)
        # None can be quicker than its round trips, and one of them is hardly slower.
        secs, requests = min(secs), min(requests)
        trips = int(secs / (2 * DELAY_SECS))
        rows.append(row(f"far-{name}", of, secs, round_trips=trips, requests=requests))
    return rows


def _all_with_values(storm):
    return partial(storm.heartbeats.read_all, values=True)


def _sum(values):
    values = list(values)
    return Work(len(values), sum(map(len, values)))


def _kazoo_folders(world, folders):
    client = world.kazoo
    listed = [client.get_children_async(ROOT + folder) for folder in folders]
    pending = [
        client.get_async(f"{ROOT}{folder}/{name}")
        for folder, names in zip(folders, listed, strict=True)
        for name in names.get(timeout=DEADLINE_SECS)
    ]
    return _sum(each.get(timeout=DEADLINE_SECS)[0] for each in pending)


def _folders(world, folders):
    found = [world.ours.children_data(folder) for folder in folders]
    return _sum(node.data for nodes in found for node in nodes.values())


def _records(world):
    assignments, bases = world.reads.assignments_info(), world.reads.storm_bases()
    if {len(assignments), len(bases)} != {filling.TOPOLOGIES}:
        raise RuntimeError(f"{len(assignments)} assignments and {len(bases)} bases were read")
    return Work(len(assignments) + len(bases), 0)


def _heartbeats(reads, storm_id):
    found = reads.worker_heartbeats(storm_id)
    if len(found) != filling.WORKERS:
        raise RuntimeError(f"{len(found)} heartbeats were read")
    return Work(len(found), 0)


def _heartbeat_bytes(world, storm_id):
    found = world.reads.heartbeats.read_all(paths.workerbeats(storm_id), values=True)
    return _sum(one.value for one in found.by_path.values())


def _some_plain(count):
    return filling.PLAIN_PATHS[:count]


def _kazoo_get(world):
    return _sum(world.kazoo.get(ROOT + path)[0] for path in _some_plain(CALLS))


def _get(world):
    return _sum(world.ours.get_data(path) for path in _some_plain(CALLS))


def _kazoo_set(world):
    data = bytes(filling.PLAIN_BYTES)
    for path in _some_plain(CALLS):
        world.kazoo.set(ROOT + path, data)
    return Work(CALLS, CALLS * len(data))


def _set(world):
    data = bytes(filling.PLAIN_BYTES)
    for path in _some_plain(CALLS):
        world.ours.set_data(path, data)
    return Work(CALLS, CALLS * len(data))


def _kazoo_get_many(world):
    pending = [world.kazoo.get_async(ROOT + path) for path in filling.PLAIN_PATHS]
    return _sum(each.get(timeout=DEADLINE_SECS)[0] for each in pending)


def _get_many(world):
    return _sum(node.data for node in world.ours.read_many(filling.PLAIN_PATHS))


def _kazoo_children(world):
    pending = [world.kazoo.get_children_async(ROOT + paths.workerbeats(i)) for i in world.ids]
    found = [sorted(each.get(timeout=DEADLINE_SECS)) for each in pending]
    return Work(len(found), sum(len(name) for names in found for name in names))


def _children(world):
    found = world.ours.children_many([paths.workerbeats(i) for i in world.ids])
    return Work(len(found), sum(len(name) for names in found for name in names))


def _kazoo_transactions(world):
    for number in range(TRANSACTIONS):
        transaction = world.kazoo.transaction()
        for path in _some_plain(OPERATIONS):
            transaction.set_data(ROOT + path, b"%d" % number)
        failed = [each for each in transaction.commit() if isinstance(each, Exception)]
        if failed:
            raise failed[0]
    return Work(TRANSACTIONS * OPERATIONS, 0)


def _transactions(world):
    for number in range(TRANSACTIONS):
        _transaction(world.ours, number)
    return Work(TRANSACTIONS * OPERATIONS, 0)


def _transaction(state, number):
    state.commit([SetData(path, b"%d" % number) for path in _some_plain(OPERATIONS)])


class _Countdown:
    """Is told events, and knows when the last has come."""

    def __init__(self, count):
        self.left = count
        self.done = threading.Event()

    def one(self):
        self.left -= 1
        if self.left == 0:
            self.done.set()


def _kazoo_watches(world):
    awaited = _Countdown(filling.WATCHED)

    def arm():
        pending = [
            world.kazoo.get_async(ROOT + path, watch=lambda _: awaited.one())
            for path in filling.WATCHED_PATHS
        ]
        return _sum(each.get(timeout=DEADLINE_SECS)[0] for each in pending)

    return _armed_and_fired(world, "kazoo", arm, awaited)


def _watches(world):
    awaited = _Countdown(filling.WATCHED)

    def hear(event, path):
        if event is EventType.NODE_DATA_CHANGED and path.startswith("/watched/"):
            awaited.one()

    registration = world.ours.register(hear)
    try:
        return _armed_and_fired(
            world,
            "ours",
            lambda: _sum(
                node.data for node in world.ours.read_many(filling.WATCHED_PATHS, watch=True)
            ),
            awaited,
        )
    finally:
        world.ours.unregister(registration)


def _armed_and_fired(world, of, arm, awaited):
    before = threading.active_count()
    began = time.perf_counter()
    work = arm()
    armed = time.perf_counter()
    threads = threading.active_count() - before
    finished = world.setter()
    set_off = time.perf_counter()
    if not awaited.done.wait(DEADLINE_SECS):
        raise RuntimeError(f"{awaited.left} watches of {of} did not fire")
    fired = time.perf_counter()
    finished()
    name = f"watches-{filling.WATCHED}"
    return [
        row(f"{name}-armed", of, armed - began, work, threads=threads),
        row(f"{name}-fired", of, fired - set_off, work, threads=threads),
    ]
