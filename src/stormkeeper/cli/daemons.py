"""The commands that run a daemon until a signal stops it, and two for a supervisor's machine."""

import json
import os
import platform

import click

from stormkeeper import extras
from stormkeeper.cli.options import (
    Fault,
    conf_options,
    examples,
    exit_with,
    faults,
    load_conf,
    load_daemon_conf,
    log_option,
    log_warning,
    read_conf,
)


@click.command(
    epilog=examples(
        "storm pacemaker", "storm pacemaker -c pacemaker.bind.host=127.0.0.1 -c pacemaker.port=0"
    )
)
@log_option
@conf_options
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


@click.command(
    "dev-zookeeper",
    epilog=examples(
        "storm dev-zookeeper",
        "storm dev-zookeeper -c storm.zookeeper.port=0 -c storm.local.dir=/tmp/storm",
    ),
)
@log_option
@conf_options
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


@click.command(
    epilog=examples(
        "storm pipeline -c 'pacemaker.servers=[pacemaker-1, pacemaker-2]'",
        "storm pipeline -c pipeline.tables.dir=/data/heartbeats -c 'spark.master=local[2]'",
    )
)
@log_option
@conf_options
def pipeline() -> None:
    """Run the heartbeat pipeline on Spark.

    It reads heartbeats from the Pacemakers of pacemaker.servers, and writes tables to
    pipeline.tables.dir: the liveness of workers every pipeline.trigger.secs, statistics of workers
    and components every pipeline.statistics.secs. It prints `pipeline writing to DIR` after the
    first batch of both. It logs which Pacemakers cannot be read, and why. Metrics and health are on
    pipeline.metrics.port. SIGTERM and SIGINT stop it.

    Needs the extra stormkeeper[spark]; exit code 69: it is not installed.
    """
    from stormkeeper.daemon.lifecycle import StopSignals

    # First of all, so that a stop signal during the start is not lost.
    with StopSignals() as stop, faults():
        extras.require("spark", "storm pipeline")
        conf = load_daemon_conf()
        # Arrow chooses at its first import. Its default pool keeps the memory that threads free;
        # jemalloc keeps the least, but Arrow's builds for ARM lack it.
        pool = "jemalloc" if platform.machine() == "x86_64" else "system"
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", pool)
        from stormkeeper.pipeline import process

        code = process.serve(conf, stop)
    exit_with(code)


@click.command(
    epilog=examples(
        "storm nimbus",
        "storm nimbus -c nimbus.thrift.port=6628 -c storm.local.dir=/var/lib/second",
        "storm nimbus --take-over",
    )
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Lead also the topologies of Storm's own Nimbus, which must be stopped for good.",
)
@log_option
@conf_options
def nimbus(take_over: bool) -> None:
    """Run a Nimbus, the master of a cluster, or a standby.

    It listens on nimbus.bind.host and nimbus.thrift.port, and prints `nimbus listening on
    HOST:PORT` when it is ready. Of several Nimbuses, ZooKeeper elects the leader. Metrics and
    health are on nimbus.metrics.port. SIGTERM and SIGINT stop it: then another Nimbus leads, and
    topologies keep running.
    """
    from stormkeeper.daemon.lifecycle import StopSignals

    # First of all, so that a stop signal during the start is not lost.
    with StopSignals() as stop, faults():
        conf = load_daemon_conf(has_clients=True)
        from stormkeeper.nimbus import process

        code = process.serve(conf, stop, may_take_over=take_over)
    exit_with(code)


@click.command(
    epilog=examples(
        "storm supervisor",
        "storm supervisor -c 'supervisor.slots.ports=[6700, 6701]' -c logviewer.port=8001",
    )
)
@log_option
@conf_options
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
    from stormkeeper.daemon.lifecycle import StopSignals

    # First of all, so that a stop signal during the start is not lost.
    with StopSignals() as stop, faults():
        extras.require("spark", "storm supervisor", "pyspark")
        conf = load_daemon_conf(has_clients=True)
        from stormkeeper.supervisor import process

        code = process.serve(conf, stop)
    exit_with(code)


@click.command(
    "kill_workers",
    epilog=examples("storm kill_workers", "storm kill_workers --json"),
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, an object a worker.")
@conf_options
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
            click.echo("storm: a supervisor runs here, and will start its workers again", err=True)
        ended = end_workers(directories, SlotTimeouts.from_conf(conf).grace)
    if as_json:
        values = [
            {
                "worker_id": one.worker_id,
                "topology": one.storm_id,
                "port": one.port,
                "pid": one.pid,
                "by_force": one.by_force,
            }
            for one in ended
        ]
        click.echo(json.dumps(values))
    elif not ended:
        click.echo("no worker runs here")
    else:
        for one in ended:
            whose = f"of {one.storm_id} in slot {one.port}" if one.storm_id else "of unknown origin"
            how = ", by force" if one.by_force else ""
            click.echo(f"ended the worker {one.worker_id} {whose}{how}")


@click.command(
    "node-health-check",
    epilog=examples(
        "storm node-health-check",
        "storm node-health-check -c storm.health.check.dir=/etc/stormkeeper/healthchecks --json",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@conf_options
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
        click.echo(json.dumps({"healthy": not failed, "failed": values}))
        exit_with(1 if failed else 0)
    if failed:
        raise Fault(
            "\n".join(f"the health check {one.name} failed: {one.reason}" for one in failed)
        )
    click.echo("healthy")
