"""One run of a shape: everything is started, watched for a while, compared, and ended."""

import contextlib
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from pipeline import agreement, daemons, families, truth, watching
from pipeline.looks import Looks
from stormkeeper.conf import load
from stormkeeper.history.manifest import NAME
from stormkeeper.history.table_reader import Tables

#: Spark starts, beside seven others that want the machine.
START_SECS = 240
#: Until all workers of a simulation are made, and until its truth is written.
SIMULATION_SECS = 600
#: Storm's ``task.heartbeat.frequency.secs``, and how many of them its timeout is.
STORMS_PERIOD_SECS = 3.0
TIMEOUT_PERIODS = 10
#: Of a run of so many seconds it can be said whether lags and memory grow with time: lags would be
#: longer than so many intervals in one of its thirds, and memory by so much in the last of them.
LONG_SECS = 600.0
_INTERVALS = 2
_GROWN = 1.2
#: Between two looks at the memory, which cost some milliseconds each.
_MEMORY_SECS = 5.0


def run(shape, secs, *, pacemakers=2, settle_secs=15.0, conf=(), seed=0, folder=None):
    """Run a shape for `secs` seconds after it has settled; return its figures and what failed."""
    kept = folder is not None
    folder = Path(folder or tempfile.mkdtemp(prefix="bench-pipeline-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.ExitStack() as stack:
            conf = _timeout(shape) | dict(conf)
            return _run(stack, shape, secs, folder, pacemakers, settle_secs, conf, seed)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _timeout(shape):
    """Return a timeout that goes with workers which beat less often than Storm's do."""
    if shape.period_secs <= STORMS_PERIOD_SECS:
        return {}
    return {"nimbus.task.timeout.secs": round(TIMEOUT_PERIODS * shape.period_secs)}


def _run(stack, shape, secs, folder, pacemakers, settle_secs, conf, seed):
    tables, told = folder / "tables", folder / "truth.jsonl"
    servers = [stack.enter_context(daemons.Pacemaker()) for _ in range(pacemakers)]
    pipeline = stack.enter_context(daemons.pipeline(servers, tables, shape, conf))
    say(f"{shape.name}: Spark starts")
    pipeline.until(lambda it: "pipeline writing to" in it.output, START_SECS)
    watches = [
        stack.enter_context(watching.Watch(tables / "liveness", "worker_liveness", "last_seen")),
        stack.enter_context(
            watching.Watch(tables / "statistics", "worker_reports", "received_at", "skipped")
        ),
    ]
    say(f"{shape.name}: {shape.workers:,} workers, {shape.rate:,.0f} heartbeats/s")
    simulating = stack.enter_context(
        daemons.simulation(servers, told, shape, settle_secs + secs, seed)
    )
    simulating.until(lambda it: any("ready after" in line for line in it.lines), SIMULATION_SECS)
    time.sleep(settle_secs)
    named = {f"pacemaker {n}": server.pid for n, server in enumerate(servers, start=1)}
    named |= {"simulation": simulating.pid, "pipeline": pipeline.pid}
    with Spending(named) as spending:
        begin = time.time()
        while (left := begin + secs - time.time()) > 0:
            if not pipeline.is_running:
                raise SystemExit("storm pipeline has ended:\n" + "\n".join(pipeline.lines[-20:]))
            time.sleep(min(1.0, left))
    if simulating.wait(SIMULATION_SECS):
        raise SystemExit("storm simulate failed:\n" + "\n".join(simulating.lines[-5:]))
    summary = json.loads(simulating.output)
    say(f"{shape.name}: the last batches, and what they say")
    # The one that runs may have read before the last heartbeat, the next one has not.
    counts = [watch.published() + 2 for watch in watches]
    last_secs = 3 * max(shape.trigger_secs, shape.statistics_secs) + 60
    is_whole = watching.wait_for(watches, counts, last_secs, lambda: pipeline.is_running)
    found = figures(shape, secs, summary, spending, watches, begin)
    failures = missed(shape, summary, found)
    failures += [watch.fault for watch in watches if watch.fault]
    if not is_whole:
        said = "\n".join(pipeline.lines[-20:])
        failures.append(f"no two batches came after the simulation's end:\n{said}")
    kept = [
        Tables(tables / name) if (tables / name / NAME).exists() else None
        for name in ("liveness", "statistics", "alerts")
    ]
    readings = [at for at, *_ in watches[1].versions]
    between = (b - a for a, b in itertools.pairwise(readings))
    began, slowest = readings[0], max(between, default=last_secs)
    verdict = agreement.compare(truth.load(told), *kept, looks(shape, conf, slowest), began)
    found["truth"] = verdict.as_json()
    failures += verdict.lines()
    if pipeline.stop():
        failures.append("storm pipeline did not end well: " + "\n".join(pipeline.lines[-5:]))
    found["failures"] = failures
    return found


def looks(shape, conf, slowest):
    """Return what the pipeline was told of its limits; it took `slowest` seconds for a reading."""
    known = load(files=(), overrides=[f"{key}={value}" for key, value in conf.items()])
    return Looks(
        shape.trigger_secs,
        max(shape.statistics_secs or shape.trigger_secs, slowest),
        known["pipeline.late.secs"] or 3 * max(1, round(shape.period_secs)),
        known["nimbus.task.timeout.secs"],
        known["pipeline.analyses.secs"],
    )


class Spending:
    """Processor time and memory of some families, from its beginning to its end."""

    def __init__(self, named):
        self._named = named
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.memory = {name: [] for name in named}

    def __enter__(self):
        self._began = self._now()
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._ended = self._now()
        self._stop.set()
        self._thread.join()

    def cpu(self):
        """Return percent of a core by family, of this process, and of all else on the machine."""
        (began, before), (ended, after) = self._began, self._ended
        shares = {name: 100 * (after[name] - before[name]) / (ended - began) for name in before}
        rest = shares.pop("machine") - sum(shares.values())
        return {**shares, "all else": max(0.0, rest)}

    def _now(self):
        spent = {name: families.cpu_secs(pid) for name, pid in self._named.items()}
        spent["bench"] = families.cpu_secs_of_process(os.getpid())
        spent["machine"] = families.machine_secs()
        return time.monotonic(), spent

    def _sample(self):
        while True:
            for name, pid in self._named.items():
                self.memory[name].append(families.pss_mib(pid))
            if self._stop.wait(_MEMORY_SECS):
                return


def figures(shape, secs, summary, spending, watches, begin):
    """Return what was measured, as the results have it."""
    end = begin + secs
    cpu = {name: round(share, 1) for name, share in spending.cpu().items()}
    memory = {name: _memory(found) for name, found in spending.memory.items()}
    liveness, reports = (watching.figures(watch.between(begin, end), secs) for watch in watches)
    return {
        "workers": summary["workers"],
        "topologies": summary["topologies"],
        "period_secs": round(shape.period_secs, 3),
        "trigger_secs": shape.trigger_secs,
        "statistics_secs": shape.statistics_secs,
        "seconds": secs,
        "pulses/s": summary["per_second"],
        "bytes of a pulse": round(summary["bytes"] / max(1, summary["sent"])),
        "missed": summary["sent"] - summary["acknowledged"],
        "left out": summary["left_out"],
        "behind the schedule, ms": summary["lag_ms"],
        "CPU, %": cpu,
        "PSS, MiB": memory,
        "liveness": liveness,
        "statistics": reports,
    }


def _memory(found):
    """Return what samples of memory say; what grows would show in the thirds of the time."""
    third = max(1, len(found) // 3)
    parts = [part for part in (found[:third], found[third:-third], found[-third:]) if part]
    return {
        "median": round(statistics.median(found)),
        "max": round(max(found)),
        "by thirds": [round(statistics.median(part)) for part in parts],
    }


def missed(shape, summary, found):
    """Return what of the promises was not kept, in words."""
    failures = []
    if summary["failed"]:
        failures.append(f"{summary['failed']} heartbeats were not taken")
    if summary["left_out"]:
        failures.append(f"{summary['left_out']} heartbeats were not sent: the machine is too slow")
    unread = found["statistics"].get("overwritten unread", 0)
    if not shape.statistics_secs and unread:
        failures.append(f"{unread} pulses were overwritten before they were decoded")
    known = {
        "pipeline CPU, %": found["CPU, %"]["pipeline"],
        "pipeline PSS, MiB": found["PSS, MiB"]["pipeline"]["max"],
        "liveness lag p50, s": found["liveness"].get("lag p50, s", float("inf")),
    }
    for name, most in shape.bars:
        if known[name] > most:
            failures.append(f"{name} is {known[name]:g}, promised at most {most:g}")
    return [*failures, *grown(shape, found)]


def grown(shape, found):
    """Yield what grows with time, in words, of a run that was long enough to tell."""
    if found["seconds"] < LONG_SECS:
        return
    for query, secs in (
        ("liveness", shape.trigger_secs),
        ("statistics", shape.statistics_secs or shape.trigger_secs),
    ):
        lags = found[query].get("lag p99 by thirds, s", [float("inf")])
        if max(lags) > _INTERVALS * secs:
            yield f"lags of {query} are not bounded by {_INTERVALS * secs:g} s: {lags}"
    first, *_, last = found["PSS, MiB"]["pipeline"]["by thirds"]
    if last > _GROWN * first:
        yield f"the pipeline's memory grows with time: {first} MiB in the median, {last} at last"


def say(text):
    """Tell the user where the bench is."""
    print(text, file=sys.stderr, flush=True)
