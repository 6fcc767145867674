"""What is measured: the cells of the table, and how long each takes."""

import fnmatch
from dataclasses import dataclass, replace

#: The sizes of a heartbeat: of an idle worker, of one with five executors, of one with fifty.
SIZES = (512, 3_072, 29_696)
#: Connections and requests outstanding on each.
CONCURRENCIES = ((50, 1), (1_000, 1), (50, 16))
#: Pulses of 6,648 workers, one each 3 s; and of 72,000.
RATES = (2_216, 24_000)
WORKERS = 6_648
KEYS_STORED = (1_000, 10_000, 150_000)
WORKERS_PER_TOPOLOGY = 24
MEMORY_KEYS = 72_000
OVERWRITES = 5
#: Overwritten values are longer or shorter by up to so many bytes, as a worker's are in truth:
#: what is freed seldom fits what comes next.
JITTER = 512

#: How all is read: with the values, and without them.
READINGS = ("changes", "ages")
#: Connections of those who write while all is read; each stands for twelve workers, as 72,000 do
#: not fit the ports of one address.
WRITERS = 6_000

OURS = ("stormkeeper", "stormkeeper-interpreted")
PACEMAKERS = (*OURS, "storm")


@dataclass(frozen=True)
class Cell:
    """One measurement of one server.

    `op` is its name in the results; `kind` says how it is run; `expected_secs` how long that takes
    with one server, roughly, all included. `servers` are those that can do it, None all.
    """

    kind: str
    op: str
    bytes: int | None
    connections: int
    outstanding: int
    expected_secs: float
    rate: int = 0
    keys: int = 0
    servers: tuple[str, ...] | None = None

    @property
    def label(self):
        parts = [self.op]
        if self.kind == "closed":
            parts += [str(self.bytes), f"{self.connections}x{self.outstanding}"]
        return "-".join(parts)

    def is_for(self, server):
        return self.servers is None or server in self.servers


@dataclass(frozen=True)
class Pace:
    """How long things are measured, in seconds."""

    warmup: float
    closed: float
    paced: float
    rounds: int


FULL = Pace(warmup=0.3, closed=1.0, paced=4.0, rounds=3)
QUICK = Pace(warmup=0.1, closed=0.3, paced=1.5, rounds=1)


def all_cells(pace):
    """Return the cells in the order in which they are run."""
    closed = [
        Cell("closed", op, size, connections, outstanding, pace.warmup + pace.closed + 0.25)
        for op in ("send", "get")
        for size in SIZES
        for connections, outstanding in CONCURRENCIES
    ]
    paced = [
        Cell(
            *("paced", f"send-{rate}/s", 3_072, WORKERS, 1),
            expected_secs=2 * pace.warmup + pace.paced + 2.5,
            rate=rate,
        )
        for rate in RATES
    ]
    children = [
        Cell(
            *("children", f"children-{keys}", None, 1, 1),
            expected_secs=pace.warmup + pace.closed + 1 + keys / 100_000,
            keys=keys,
            servers=PACEMAKERS,
        )
        for keys in KEYS_STORED
    ]
    memory = Cell("memory", "memory", 3_072, 50, 16, 7, keys=MEMORY_KEYS)
    memory = replace(memory, servers=(*PACEMAKERS, "redis", "memcached"))
    read = Cell("read", "read-72000", 3_072, 1, 1, 4 + 3 * pace.paced, keys=MEMORY_KEYS)
    return [*closed, *paced, *children, memory, replace(read, servers=OURS)]


def chosen(cells, patterns):
    """Return the cells whose label has one of the patterns in it (``*`` stands for anything)."""
    if not patterns:
        return cells
    return [c for c in cells if any(fnmatch.fnmatch(c.label, f"*{p}*") for p in patterns)]


def expected_secs(cells, servers, rounds, started_secs):
    """Return how long a run takes: each server is started once a round for the common cells."""
    once = sum(c.expected_secs for c in cells for s in servers if c.is_for(s)) + started_secs
    return rounds * once
