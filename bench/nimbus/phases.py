"""The phases of a run: a cluster starts, rests, loses supervisors and its leader.

Each phase returns figures by name; all that is in ZooKeeper after it is checked by `nimbus.truth`.
"""

import contextlib
import os
import signal
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.exceptions import NoNodeError
from pacemaker.servers import Stormkeeper

from nimbus import cluster, storms_way, truth
from nimbus.running import Fleet, Nimbus, ProcessorTime, Traffic, await_true
from stormkeeper import paths
from stormkeeper.local.dev_zookeeper import DevZooKeeper

ZOOKEEPER = {"4lw.commands.whitelist": "*", "maxClientCnxns": "0"}
#: For 3,000 supervisors; the servers of a real cluster have more.
HEAP = ("-Xms512m", "-Xmx1500m")
ROOT_OF_LOCKS = cluster.ROOT + paths.LEADER_LOCK
NIMBUSES = ("first", "second")
OTHERS = ("bench", "fleet", "pacemaker 0", "pacemaker 1", "zookeeper")
FULL_TEXT = "Fully Scheduled"
SETTLE_SECS = 120.0
POLL_SECS = 1.0


@dataclass(frozen=True)
class Pace:
    """The timeouts of the cluster, and how long it is watched at rest."""

    task_secs: float = 30.0
    session_secs: float = 20.0
    monitor_secs: float = 10.0
    rest_secs: float = 30.0
    rounds: int = 6


FULL = Pace()
QUICK = Pace(task_secs=8.0, session_secs=4.0, monitor_secs=1.0, rest_secs=3.0, rounds=3)


@dataclass
class World:
    """The running cluster, and what stood in ZooKeeper after the last event."""

    shape: cluster.Shape
    zookeeper: DevZooKeeper
    #: Ports.
    pacemakers: list
    client: object
    fleet: Fleet
    settings: dict
    processors: ProcessorTime
    #: Of each topology.
    queries: frozenset = frozenset()
    placed: truth.Placed = field(default_factory=truth.Placed)
    up: set = field(default_factory=set)
    #: The longest round that was seen in this phase, in seconds.
    longest: float = 0.0

    def raise_supervisors(self, first, count):
        answer = self.fleet.up(first, count)
        self.up |= set(range(first, first + count))
        return answer["at"]

    def check(self, event):
        """Read what stands in ZooKeeper; raises `RuntimeError` for a fault."""
        before, placed = self.placed, truth.read(self.client)
        living = {cluster.supervisor_id(number) for number in self.up}
        found = truth.faults(placed, before, self.shape.storm_ids, self.queries, living)
        if found:
            raise RuntimeError("\n  ".join([f"after {event}:", *found]))
        self.placed = placed
        return placed

    def cpu(self, phase, nimbus, began, ended):
        """Return the processor time of a Nimbus, and of `OTHERS`, between two moments."""
        spent = {name: self.processors.between(name, began, ended) for name in OTHERS}
        secs = max(ended - began, ProcessorTime.PERIOD_SECS)
        return {
            f"{phase}: CPU, s": self.processors.between(nimbus.log.stem, began, ended),
            f"{phase}: CPU of all others, cores": sum(spent.values()) / secs,
        }

    def check_unchanged(self, event):
        before = self.placed
        if changed := self.check(event).changed_since(before):
            raise RuntimeError(f"{changed} topologies were assigned anew after {event}")

    def await_placed(self, nimbus, secs):
        """Wait until all workers have a place on a living supervisor."""

        def is_placed():
            self.look(nimbus)
            status = self.fleet.status()
            if status["pulses_fault"]:
                raise RuntimeError(status["pulses_fault"])
            placed = status["running"] + status["starting"]
            return placed == self.shape.workers and not status["launches_on_dead"]

        await_true(is_placed, "all workers placed", secs, pause_secs=POLL_SECS, check=nimbus.check)

    def await_running(self, nimbus):
        def is_running():
            return self.fleet.status()["running"] == self.shape.workers

        await_true(is_running, "all workers running", 60, check=nimbus.check)

    def longest_since(self):
        """Return the longest round since the last call, as far as any was seen."""
        found, self.longest = self.longest, 0.0
        return found

    def look(self, nimbus):
        """Take note of the last round, if the Nimbus answers."""
        found = nimbus.metrics()
        took = found.get("round_seconds", 0.0)
        self.longest = max(self.longest, took)
        return found


@contextlib.contextmanager
def world(shape, folder, pace):
    """A cluster without a Nimbus: all topologies submitted, no supervisor up."""
    folder = Path(folder)
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(
            DevZooKeeper(folder / "zookeeper", settings=ZOOKEEPER, jvm_options=HEAP)
        )
        servers = [stack.enter_context(Pacemaker()) for _ in range(2)]
        pacemakers = [server.port for server in servers]
        monitor = {"nimbus.monitor.freq.secs": pace.monitor_secs}
        settings = cluster.conf(shape, zookeeper.port, pacemakers, **monitor)
        client = stack.enter_context(cluster.kazoo_client(zookeeper.port))
        fleet = stack.enter_context(Fleet(folder, shape, settings, pacemakers))
        processors = stack.enter_context(ProcessorTime())
        pids = (
            os.getpid(),
            fleet.pid,
            *(int(server.pids.split(",")[0]) for server in servers),
            zookeeper.pid,
        )
        for name, pid in zip(OTHERS, pids, strict=True):
            processors.add(name, pid)
        yield World(shape, zookeeper, pacemakers, client, fleet, settings, processors)


class Pacemaker(Stormkeeper):
    pinned = False


def run(shape, folder, python, pace, say):
    """Run all phases; return the figures by name."""
    figures = {}
    folder = Path(folder)
    with world(shape, folder, pace) as it, contextlib.ExitStack() as stack:
        nimbuses = {name: Nimbus(folder, name, it.settings, python) for name in NIMBUSES}
        began = time.monotonic()
        built = cluster.code(shape, folder)
        it.queries = frozenset(built.description.query_ids)
        homes = {each.id: each.folder / "blobs" for each in nimbuses.values()}
        cluster.submit_all(it.client, shape, it.settings, built, homes)
        held = {
            name: stack.enter_context(cluster.kazoo_client(it.zookeeper.port)) for name in NIMBUSES
        }
        for name, client in held.items():
            cluster.hold_blobs(client, shape, nimbuses[name].id)
        say(f"{shape.topologies:,} topologies written in {time.monotonic() - began:.1f} s")

        first, second = (nimbuses[name] for name in NIMBUSES)
        stack.enter_context(first)
        it.processors.add("first", first.pid)
        figures |= start(it, first, say)
        figures |= place(it, first, say)
        figures |= rest(it, first, pace, say)
        it.raise_supervisors(shape.supervisors, shape.spares)
        say(f"{shape.spares} more supervisors are up")
        figures |= death(it, first, 0, 1, "one", say)
        figures |= death(it, first, 1, shape.dying, "many", say)
        memory = [first.memory_mib()[1]]
        stack.enter_context(second)
        it.processors.add("second", second.pid)
        await_true(lambda: second.page("readyz"), "the second Nimbus", 60, check=second.check)
        figures |= failover(it, first, second, held["first"], say)
        memory.append(second.memory_mib()[1])
        figures["memory, most, MiB"] = max(memory)
        figures |= storms_way.measure(it.settings, say)
        status = it.fleet.status()
        say(
            f"{status['pulses_sent']:,} pulses sent, {status['pulses_late']} times late;"
            f" {status['records_written']:,} records written, {status['records_failed']} in vain"
        )
        if status["pulses_late"]:
            figures["pulses late, times"] = status["pulses_late"]
    return figures


def start(it, nimbus, say):
    """The Nimbus starts, leads, and has read all topologies once, without a supervisor."""
    began = time.time()
    leads, ended, _ = first_round(it, nimbus)
    say(f"the Nimbus leads after {leads - began:.1f} s; its first round: {ended - leads:.1f} s")
    return {"start: to the lead, s": leads - began, "start: first round, s": ended - leads}


def first_round(it, nimbus, after=0.0):
    """Wait for a leader's first round; return when it began to lead, when it ended, and states."""
    await_true(lambda: nimbus.led_at(after), "a leader", 240, check=nimbus.check)
    leads = nimbus.led_at(after)

    def states():
        found = nimbus.first_texts(leads)
        return found if len(found) == it.shape.topologies else None

    found = await_true(states, "a leader's first round", 240, pause_secs=0.5, check=nimbus.check)
    return leads, max(at for at, _ in found.values()), [state for _, state in found.values()]


def place(it, nimbus, say):
    """All supervisors come up while the leader is frozen; it leads again, and places everything.

    Otherwise it would place all topologies on the first few supervisors.
    """
    nimbus.send_signal(signal.SIGSTOP)
    frozen = time.time()
    others = it.shape.dying
    it.raise_supervisors(0, 1)
    it.raise_supervisors(1, others)
    registered = it.raise_supervisors(1 + others, it.shape.supervisors - 1 - others)
    say(f"{it.shape.supervisors:,} supervisors are up after {registered - frozen:.1f} s")
    # Until the session of the frozen leader has ended.
    await_true(lambda: not locks(it), "the end of the leader's session", 60)
    nimbus.send_signal(signal.SIGCONT)
    leads, _, _ = first_round(it, nimbus, registered)
    it.await_placed(nimbus, SETTLE_SECS * 3)
    placed = it.check("placing all")
    if placed.workers != it.shape.workers:
        raise RuntimeError(f"{placed.workers} workers were placed, not {it.shape.workers}")
    took = placed.last_write() - leads
    first = min(placed.written_at.values()) - leads
    say(f"{placed.workers:,} workers are placed {took:.1f} s after it leads, from {first:.1f} s on")
    it.await_running(nimbus)
    await_true(
        lambda: it.look(nimbus).get('workers{status="alive"}') == it.shape.workers,
        "all workers alive",
        SETTLE_SECS * 2,
        check=nimbus.check,
    )
    return {
        "placing all: to the last assignment, s": took,
        "placing all: longest round, s": it.longest_since(),
        **it.cpu("placing all", nimbus, leads, placed.last_write()),
    }


def locks(it):
    """Return the holders of the leader's lock and of the places behind it."""
    top, found = ROOT_OF_LOCKS, []
    for name in it.client.get_children(top):
        with contextlib.suppress(NoNodeError):
            found.append(it.client.get(f"{top}/{name}")[0].decode())
    return found


def rest(it, nimbus, pace, say):
    """Nothing changes but the supervisors' records and the pulses' ages."""
    # CPU without a scrape.
    time.sleep(pace.rest_secs / 3)
    cpu, began = nimbus.cpu_secs, time.monotonic()
    time.sleep(pace.rest_secs)
    share = (nimbus.cpu_secs - cpu) / (time.monotonic() - began)
    traffic, cpu, began = (
        Traffic(it.zookeeper, it.pacemakers, nimbus.pid),
        nimbus.cpu_secs,
        time.monotonic(),
    )
    last = counted = nimbus.metrics()["rounds_total"]
    took, deadline = [], time.monotonic() + 30 * pace.rounds
    # The first may coincide with a count of the topologies' health, which a scrape begins.
    while len(took) <= pace.rounds and time.monotonic() < deadline:
        found = nimbus.metrics()
        if found["rounds_total"] != last:
            last = found["rounds_total"]
            took.append(found["round_seconds"])
            time.sleep(pace.monitor_secs)
        time.sleep(0.2)
    del took[:1]
    watched = (nimbus.cpu_secs - cpu) / (time.monotonic() - began)
    exchanged = Traffic(it.zookeeper, it.pacemakers, nimbus.pid).since(traffic)
    rounds = max(1, nimbus.metrics()["rounds_total"] - counted)
    it.check_unchanged("a rest")
    median = statistics.median(took) * 1000
    figures = {
        "at rest: a round, median, ms": median,
        "at rest: longest round, s": max(took),
        "at rest: CPU, % of a core": share * 100,
        "at rest: CPU while its metrics are read, % of a core": watched * 100,
        "at rest: ZooKeeper requests a round": exchanged["requests"] / rounds,
        "at rest: ZooKeeper events a round": exchanged["pushed"] / rounds,
        "at rest: memory, MiB": nimbus.memory_mib()[0],
    }
    if exchanged["bytes"] is not None:
        figures["at rest: ZooKeeper KiB a round"] = exchanged["bytes"] / rounds / 1024
        figures["at rest: Pacemaker KiB a round"] = exchanged["pulse_bytes"] / rounds / 1024
    say(f"at rest: {len(took)} rounds, {median:.0f} ms; CPU {share:.0%}")
    return figures


def death(it, nimbus, first, count, name, say):
    """Supervisors die with their workers; their queries run elsewhere."""
    it.longest_since()
    died = it.fleet.die(first, count)
    it.up -= set(range(first, first + count))
    proven = died["last_pulse"] + it.shape.task_timeout_secs
    it.await_placed(nimbus, it.shape.task_timeout_secs + SETTLE_SECS)
    placed = it.check(f"the death of {count}")
    last = placed.last_write(died["at"])
    say(
        f"{count} supervisors died: their workers have a new place {last - died['at']:.1f} s"
        f" later, {last - proven:.2f} s after the timeout"
    )
    it.await_running(nimbus)
    return {
        f"death of {name}: to the last assignment, s": last - died["at"],
        f"death of {name}: beyond the timeout, s": last - proven,
        f"death of {name}: longest round, s": it.longest_since(),
        **it.cpu(f"death of {name}", nimbus, proven, last),
    }


def failover(it, first, second, held, say):
    """The leader is killed; the next one's first round knows everything, and moves nothing."""
    killed = time.time()
    first.kill()
    lock = str(first.id)
    await_true(lambda: lock not in locks(it), "the end of the session", 60)
    # What the killed Nimbus held ends with its session.
    held.stop()
    leads, ended, states = first_round(it, second, killed)
    if set(states) != {FULL_TEXT}:
        raise RuntimeError(f"the first round of the second Nimbus was not of all: {set(states)}")
    it.check_unchanged("a failover")
    beyond = ended - killed - it.shape.session_timeout_secs
    say(
        f"failover: the second leads {leads - killed:.1f} s after the kill, and its first round"
        f" ended {ended - killed:.1f} s after the kill"
    )
    return {
        "failover: to the lead, s": leads - killed,
        "failover: to the first round's end, s": ended - killed,
        "failover: beyond the session's timeout, s": beyond,
        "failover: first round, s": ended - leads,
        **it.cpu("failover: first round", second, leads, ended),
    }
