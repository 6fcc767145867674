"""The commands that run a process until a signal, and two for a supervisor's machine.

The processes are the daemons, and the simulated workers of ``storm simulate``.
"""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stormkeeper import extras
from stormkeeper.cli.options import (
    Fault,
    command,
    exit_with,
    faults,
    load_conf,
    load_daemon_conf,
    log_option,
    log_warning,
    read_conf,
)
from stormkeeper.cli.output import note, print_json

if TYPE_CHECKING:
    from stormkeeper.daemon.lifecycle import StopSignals

_AT_LEAST_ONE = click.IntRange(min=1)
_POSITIVE = click.FloatRange(min=0, min_open=True)


@contextmanager
def _until_stopped() -> "Iterator[StopSignals]":
    """Yield the stop signals, of which none is lost during the start; errors are faults."""
    from stormkeeper.daemon.lifecycle import StopSignals

    with StopSignals() as stop, faults():
        yield stop


@command("storm pacemaker", "storm pacemaker -c pacemaker.bind.host=127.0.0.1 -c pacemaker.port=0")
@log_option
def pacemaker() -> None:
    """Run a Pacemaker, which receives and keeps heartbeats.

    It listens on pacemaker.bind.host and pacemaker.port, and prints `pacemaker listening on
    HOST:PORT` when it is ready. SIGTERM and SIGINT stop it. On SIGHUP it reloads configuration,
    users and certificates.
    """
    conf = load_daemon_conf()
    from stormkeeper.pacemaker.server import daemon

    with faults():
        code = daemon.serve(conf, lambda held: read_conf(warn=log_warning, instead_of=held))
    exit_with(code)


@command(
    "storm dev-zookeeper",
    "storm dev-zookeeper -c storm.zookeeper.port=0 -c storm.local.dir=/tmp/storm",
    name="dev-zookeeper",
)
@log_option
def dev_zookeeper() -> None:
    """Run a ZooKeeper server, for development.

    It is the real ZooKeeper, from PySpark's jars. It listens on storm.zookeeper.port, keeps its
    data below storm.local.dir, and prints `zookeeper listening on HOST:PORT` when it is ready.
    SIGTERM and SIGINT stop it.

    Needs the extra stormkeeper[spark]; exit code 69: it is not installed.
    """
    conf = load_daemon_conf()
    from stormkeeper.local import dev_zookeeper as zookeeper

    with faults():
        extras.require("spark", "storm dev-zookeeper", "pyspark")
        code = zookeeper.serve(conf)
    exit_with(code)


@command(
    "storm pipeline -c 'pacemaker.servers=[pacemaker-1, pacemaker-2]'",
    "storm pipeline -c pipeline.tables.dir=/data/heartbeats -c 'spark.master=local[2]'",
)
@log_option
def pipeline() -> None:
    """Run the heartbeat pipeline on Spark.

    It reads heartbeats from the Pacemakers of pacemaker.servers, and writes tables to
    pipeline.tables.dir: liveness every pipeline.trigger.secs, statistics every
    pipeline.statistics.secs. It prints `pipeline writing to DIR` after the first batch of both.
    Metrics and health are on pipeline.metrics.port. SIGTERM and SIGINT stop it.

    Needs the extra stormkeeper[spark]; exit code 69: it is not installed.
    """
    with _until_stopped() as stop:
        extras.require("spark", "storm pipeline")
        conf = load_daemon_conf()
        # Arrow chooses at the first import. Its default pool keeps the memory that threads free;
        # jemalloc keeps the least, but Arrow's ARM builds lack it.
        pool = "jemalloc" if platform.machine() == "x86_64" else "system"
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", pool)
        from stormkeeper.pipeline import process

        code = process.serve(conf, stop)
    exit_with(code)


@command(
    "storm nimbus",
    "storm nimbus -c nimbus.thrift.port=6628 -c storm.local.dir=/var/lib/second",
    "storm nimbus --take-over",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Lead also the topologies of Storm's own Nimbus, which must be stopped for good.",
)
@log_option
def nimbus(take_over: bool) -> None:
    """Run a Nimbus, the master of a cluster, or a standby.

    It listens on nimbus.bind.host and nimbus.thrift.port, and prints `nimbus listening on
    HOST:PORT` when it is ready. Of several Nimbuses, ZooKeeper elects the leader. Metrics and
    health are on nimbus.metrics.port. SIGTERM and SIGINT stop it: then another Nimbus leads, and
    topologies keep running.
    """
    with _until_stopped() as stop:
        conf = load_daemon_conf(has_clients=True)
        from stormkeeper.nimbus import process

        code = process.serve(conf, stop, may_take_over=take_over)
    exit_with(code)


@command(
    "storm supervisor",
    "storm supervisor -c 'supervisor.slots.ports=[6700, 6701]' -c logviewer.port=8001",
)
@log_option
def supervisor() -> None:
    """Run a supervisor, which runs a cluster's workers on this machine.

    It registers in the ZooKeeper of storm.zookeeper.servers, downloads the code of topologies that
    are assigned to it, and runs one worker in each slot of supervisor.slots.ports. It prints
    `supervisor ready ID` when it is ready. SIGTERM and SIGINT stop it. The workers keep running,
    and the next supervisor with the same storm.local.dir adopts them; to end them, use
    `storm kill_workers`.

    Workers run as this user, with this user's rights.

    Needs the extra stormkeeper[spark]; exit code 69: it is not installed.
    """
    with _until_stopped() as stop:
        extras.require("spark", "storm supervisor", "pyspark")
        conf = load_daemon_conf(has_clients=True)
        from stormkeeper.supervisor import process

        code = process.serve(conf, stop)
    exit_with(code)


@command("storm kill_workers", "storm kill_workers --json", name="kill_workers")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, an object a worker.")
def kill_workers(as_json: bool) -> None:
    """End all workers of this machine's supervisor, and wait for their processes.

    The command ends the workers of the supervisor that has, or had, the same storm.local.dir. Each
    worker finishes its running batch, and is killed after 27 s plus
    supervisor.worker.shutdown.sleep.secs. A running supervisor starts its workers again: stop it
    first.

    Exit code 1: some could not be ended.
    """
    conf = load_conf()
    from stormkeeper.supervisor.disk import Directories, is_locked
    from stormkeeper.supervisor.slot_model import SlotTimeouts
    from stormkeeper.supervisor.worker_processes import end_workers

    with faults():
        directories = Directories.from_conf(conf)
        if is_locked(directories.local_state):
            note("a supervisor runs here, and will start its workers again")
        ended = end_workers(directories, SlotTimeouts.from_conf(conf).grace)
    if as_json:
        print_json([asdict(one) for one in ended])
    elif not ended:
        click.echo("no worker runs here")
    else:
        for one in ended:
            whose = f"of {one.topology} in slot {one.port}" if one.topology else "of unknown origin"
            how = ", by force" if one.by_force else ""
            click.echo(f"ended the worker {one.worker_id} {whose}{how}")


@command(
    "storm node-health-check",
    "storm node-health-check -c storm.health.check.dir=/etc/stormkeeper/healthchecks --json",
    name="node-health-check",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def node_health_check(as_json: bool) -> None:
    """Run the health checks of this machine once, as a supervisor does every 30 s.

    The checks are the executables in storm.health.check.dir. A check fails if its exit code is not
    0, or if it takes longer than storm.health.check.timeout.ms.

    Exit code 1: one or more failed; a supervisor on this machine then takes no new work.
    """
    conf = load_conf()
    from stormkeeper.supervisor import health_checks

    with faults():
        failed = health_checks.check(conf)
    if as_json:
        values = [{"name": one.name, "reason": one.reason} for one in failed]
        print_json({"healthy": not failed, "failed": values})
        exit_with(1 if failed else 0)
    if failed:
        raise Fault(
            "\n".join(f"the health check {one.name} failed: {one.reason}" for one in failed)
        )
    click.echo("healthy")


@command(
    "storm simulate -c pacemaker.servers=localhost:6699 --profile small --duration 60",
    "storm simulate --nodes 3000 --workers-per-node 24 --rate 1200 --clean",
    "storm simulate --nodes 10 --workers-per-node 4 --faults --truth truth.jsonl --seed 7",
)
@click.option(
    "--profile",
    type=click.Choice(["small", "large", "huge"]),
    default="small",
    show_default=True,
    help="277 nodes with 24 workers each: 400 topologies, 100 large ones, or one huge one.",
)
@click.option("--nodes", type=_AT_LEAST_ONE, metavar="N", help="In place of the profile's.")
@click.option(
    "--workers-per-node", type=_AT_LEAST_ONE, metavar="M", help="In place of the profile's."
)
@click.option(
    "--topologies",
    type=_AT_LEAST_ONE,
    metavar="T",
    help="In place of the profile's, in proportion to the workers.",
)
@click.option(
    "--rate",
    type=_POSITIVE,
    metavar="R",
    help="Heartbeats a second of all workers together; without it each worker beats every"
    " task.heartbeat.frequency.secs.",
)
@click.option(
    "--count-every",
    type=_AT_LEAST_ONE,
    default=5,
    show_default=True,
    metavar="K",
    help="A worker's counters are new in every K-th heartbeat, its times in each: less to encode.",
)
@click.option(
    "--connections",
    type=_AT_LEAST_ONE,
    metavar="C",
    help="Connections that the nodes share; by default one for each node.",
)
@click.option(
    "--components",
    "names_components",
    is_flag=True,
    help="Executors name their components, as Stormkeeper's do.",
)
@click.option("--faults", "has_troubles", is_flag=True, help="Add faults, one of each kind.")
@click.option(
    "--truth",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the simulated events to FILE, as lines of JSON.",
)
@click.option(
    "--no-counters",
    "tells_counters",
    flag_value=False,
    default=True,
    help="Leave the workers' counters out of FILE.",
)
@click.option(
    "--duration", "duration_secs", type=_POSITIVE, metavar="SECONDS", help="End after that time."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the random choices.",
)
@click.option("--clean", "cleans", is_flag=True, help="Delete the simulated pulses at the end.")
@click.option("--beside", is_flag=True, help="Run although there are pulses of real topologies.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary at the end, as JSON.")
def simulate(
    *,
    profile: str,
    nodes: int | None,
    workers_per_node: int | None,
    topologies: int | None,
    rate: float | None,
    connections: int | None,
    truth: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send the heartbeats of simulated workers to the Pacemakers.

    The command sends the heartbeats of a whole Storm cluster, in Storm's format, to the Pacemakers
    of pacemaker.servers, until --duration is over or Ctrl-C. storm.meta.serialization.delegate sets
    their compression. Topologies are named simulated-SEED-001 and so on. Every five seconds stderr
    has the heartbeats sent and acknowledged, and the delay.

    It does not start if a Pacemaker holds pulses of other topologies, without --beside.

    Exit code 0: it ended normally. 1: it was refused, a Pacemaker did not answer, or FILE cannot be
    written. 2: wrong usage or configuration.
    """
    with _until_stopped() as stop:
        conf = load_conf()
        from stormkeeper.simulation import process
        from stormkeeper.simulation.cluster import PROFILES

        sized = PROFILES[profile].sized(nodes, workers_per_node, topologies)
        period = sized.workers / rate if rate else float(conf["task.heartbeat.frequency.secs"])
        chosen = process.SimulationOptions(
            sized,
            period_secs=period,
            connections=connections or sized.nodes,
            **options,
        )
        summary = process.run(conf, chosen, truth, stop, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        click.echo(
            f"{summary['acknowledged']} of {summary['sent']} heartbeats acknowledged in"
            f" {summary['seconds']} s"
        )
