"""Runs one cell on one server, and gives rows as in the results.

A row has the fields of `ROW`; a figure that a server has not is None.
"""

import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pacemaker import cells
from pacemaker.compiling import compiled
from pacemaker.servers import HOST, UnavailableError, cores, on_cores

ROW = (
    *("server", "op", "bytes", "connections", "outstanding"),
    *("requests_per_s", "cpu_us", "p50_ms", "p99_ms", "rss_mib"),
)
MEASURED = ROW[5:]
#: Seconds beyond a run's own after which the generator counts as stuck.
GRACE_SECS = 90
#: Share of a rate that the generator must have made for its latencies to be the server's.
RATE_KEPT = 0.95
#: Connections of those who only fill a server.
FILLERS = 50
READER = Path(__file__).with_name("reader.py")
#: Keys of the closed loops, over all connections.
HOT_KEYS = 1_000


class MeasurementError(Exception):
    """The generator ended with an error; the message is its last line."""


class BusyError(MeasurementError):
    """The machine did something else meanwhile; another time it may not."""


def row(server, op, cell, **figures):
    blank = dict.fromkeys(MEASURED)
    named = {
        "server": server,
        "op": op,
        "bytes": cell.bytes,
        "connections": cell.connections,
        "outstanding": cell.outstanding,
    }
    return named | blank | {key: value for key, value in figures.items() if key in blank}


def load(server, *arguments, **options):
    """Run the generator against a server, and return what it found (see load.c)."""
    process = start_load(server, *arguments, **options)
    found = finish_load(process, float(options.get("seconds", 60)))
    if not found["seconds"]:
        raise BusyError("this machine stood still while it was to be measured: try again")
    made = (found["requests"] + found["unanswered"]) / found["seconds"]
    if made < RATE_KEPT * options.get("rate", 0):
        raise BusyError(f"the generator made {made:,.0f} requests/s only; who else is busy?")
    return found


def start_load(server, *arguments, **options):
    named = {"host": HOST, "port": server.port, "protocol": server.protocol, "pids": server.pids}
    command = [compiled("load"), *arguments]
    for key, value in (named | options).items():
        command += ["--" + key.replace("_", "-"), str(value)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=on_cores(cores()[1]),  # noqa: PLW1509 - the bench has one thread
    )


def finish_load(process, secs):
    try:
        out, error = process.communicate(timeout=secs + GRACE_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise MeasurementError("the generator hangs") from None
    if process.returncode:
        raise MeasurementError((error.strip().splitlines() or ["no reason given"])[-1])
    return json.loads(out)


def run(cell, server, kind, pace):
    """Run a cell; `server` is a live one, and cells that fill a server start one of their `kind`.

    Returns
    -------
    list of rows
    """
    if cell.kind == "closed":
        return [run_closed(cell, server, pace)]
    if cell.kind == "paced":
        return [run_paced(cell, server, pace)]
    fresh = {"children": run_children, "memory": run_memory, "read": run_read}[cell.kind]
    with kind() as filled:
        return fresh(cell, filled, pace)


def run_closed(cell, server, pace):
    flags = [] if server.keeps_values else ["--no-verify"]
    figures = load(
        server,
        *flags,
        operation=cell.op,
        bytes=cell.bytes,
        connections=cell.connections,
        outstanding=cell.outstanding,
        keys_per_connection=max(1, HOT_KEYS // cell.connections),
        warmup=pace.warmup,
        seconds=pace.closed,
    )
    return row(server.name, cell.op, cell, **figures)


def run_paced(cell, server, pace):
    figures = load(
        server,
        operation="send",
        rate=cell.rate,
        bytes=cell.bytes,
        connections=cell.connections,
        keys_per_connection=1,
        warmup=2 * pace.warmup,
        seconds=pace.paced,
    )
    return row(server.name, cell.op, cell, **figures)


def store(server, keys, size, *, times=1, jitter=0):
    """Store so many values, each `times` times; return what the generator found."""
    each = keys // FILLERS
    return load(
        server,
        "--no-fill",
        operation="send",
        bytes=size,
        jitter=jitter,
        connections=FILLERS,
        outstanding=16,
        keys_per_connection=each,
        requests=each * times,
    )


def run_children(cell, server, pace):
    store(server, cell.keys, size=64)
    figures = load(
        server,
        "--no-fill",
        operation="children",
        connections=1,
        # As many keys as are stored, so that the generator knows the names of the topologies.
        keys_per_connection=cell.keys,
        workers_per_topology=cells.WORKERS_PER_TOPOLOGY,
        warmup=pace.warmup,
        seconds=pace.closed,
    )
    return [row(server.name, cell.op, cell, **figures)]


def run_memory(cell, server, pace):  # noqa: ARG001
    # A request first: what a server allocates once, for good, belongs to the empty one.
    figures = load(server, operation="send", bytes=64, connections=1, seconds=0.1, warmup=0.1)
    rows = [row(server.name, "memory-empty", cell, rss_mib=figures["rss_mib"])]
    figures = store(server, cell.keys, cell.bytes)
    rows.append(row(server.name, "memory-fresh", cell, rss_mib=figures["rss_mib"]))
    figures = store(server, cell.keys, cell.bytes, times=cells.OVERWRITES, jitter=cells.JITTER)
    rows.append(row(server.name, "memory-overwritten", cell, rss_mib=figures["rss_mib"]))
    return rows


def run_read(cell, server, pace):
    """Read all pulses again and again, while 72,000 workers beat; both sides are measured.

    Before that, their ages of the quiet server.
    """
    store(server, cell.keys, cell.bytes)
    readings, _ = read_during(cell, server, "ages", lambda: time.sleep(pace.paced))
    rows = [row(server.name, f"{cell.op}-ages-quiet", cell, **reading_figures(readings))]
    for how in cells.READINGS:
        readings, writers = read_while_they_beat(cell, server, pace, how)
        figures = reading_figures(readings) | {"rss_mib": writers["rss_mib"]}
        writing = row(server.name, f"send-{cells.RATES[-1]}/s-during-{how}", cell, **writers)
        rows.append(row(server.name, f"{cell.op}-{how}", cell, **figures))
        rows.append(writing | {"connections": cells.WRITERS})
    return rows


def reading_figures(readings):
    times = sorted(1000 * reading["secs"] for reading in readings)
    return {
        "requests_per_s": statistics.median(r["pulses"] / r["secs"] for r in readings),
        "p50_ms": statistics.median(times),
        "p99_ms": times[-1],
    }


def read_while_they_beat(cell, server, pace, how):
    """Return what the reader said of each reading, and what the generator found."""
    return read_during(
        cell,
        server,
        how,
        lambda: load(
            server,
            "--no-fill",  # the same keys are there already
            operation="send",
            rate=cells.RATES[-1],
            bytes=cell.bytes,
            connections=cells.WRITERS,
            keys_per_connection=cell.keys // cells.WRITERS,
            warmup=0.5,
            seconds=max(4, 1.5 * pace.paced),
        ),
    )


def read_during(cell, server, how, act):
    """Read all again and again while `act` goes on; return each reading, and what `act` gave.

    The first reading is before it, and left out: the reader has to connect, and to warm up.
    """
    reader = subprocess.Popen(
        [sys.executable, READER, f"{HOST}:{server.port}", how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=on_cores(cores()[1]),  # noqa: PLW1509 - the bench has one thread
    )
    try:
        first = json.loads(reader.stdout.readline() or "{}")
        given = act()
    finally:
        reader.send_signal(signal.SIGTERM)
        try:
            said, complaint = reader.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            reader.kill()
            said, complaint = reader.communicate()
    readings = [json.loads(line) for line in said.splitlines()]
    read = [first.get("pulses"), *(reading["pulses"] for reading in readings)]
    # Some come twice: those who beat again during the reading.
    if not readings or any(count is None or count < cell.keys for count in read):
        raise MeasurementError(f"not all were read, but {read}; {complaint[-200:]}")
    return readings, given


def burn_in(server):
    """Load a server that was just started, so that what it does once is done."""
    flags = [] if server.keeps_values else ["--no-verify"]
    load(server, *flags, operation="get", outstanding=4, warmup=0, seconds=server.burn_in_secs)


class LiveServers:
    """Servers that are kept for the cells that need no fresh one; started again when they died."""

    def __init__(self):
        self._servers = {}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for server in self._servers.values():
            server.stop()

    def get(self, kind):
        server = self._servers.get(kind)
        if server is None or not server.is_running:
            server = self._servers[kind] = kind()
            server.start()
            burn_in(server)
        return server


def attempt(cell, kind, live, pace):
    """Run a cell; a failure gives no rows and the reason, in a line."""
    began = time.monotonic()
    try:
        needs_live = cell.kind in ("closed", "paced")
        rows = run(cell, live.get(kind) if needs_live else None, kind, pace)
    except (MeasurementError, UnavailableError) as error:
        return [], f"{kind().name}, {cell.label}: {error}", time.monotonic() - began
    return rows, None, time.monotonic() - began
