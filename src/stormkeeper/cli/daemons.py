"""The commands that run a daemon until it is told to stop."""

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
    """Run a Pacemaker, which takes and keeps heartbeats.

    It listens on pacemaker.bind.host and pacemaker.port, and prints `pacemaker listening on
    HOST:PORT` when it is ready. SIGTERM and SIGINT stop it. On SIGHUP it reads configuration, users
    and certificates again.
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

    It is the real one, from PySpark's jars. It listens on storm.zookeeper.port, keeps its data
    below storm.local.dir, and prints `zookeeper listening on HOST:PORT` when it serves. SIGTERM and
    SIGINT stop it.

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
    pipeline.tables.dir: who is alive every pipeline.trigger.secs, what workers reported and
    components counted every pipeline.statistics.secs. It prints `pipeline writing to DIR` when the
    first batch of both is there. It logs which Pacemakers cannot be read, and why. Metrics
    and health are on pipeline.metrics.port. SIGTERM and SIGINT stop it.

    Needs the extra stormkeeper[spark]; exit code 69: it is not installed.
    """
    from stormkeeper.daemon.lifecycle import StopSignals

    # Before anything that takes time: a stop is heeded from now on.
    with StopSignals() as stop, faults():
        extras.require("spark", "storm pipeline")
        conf = load_daemon_conf()
        # Arrow's own choice keeps what each thread has freed; and it is made at its first import.
        # Jemalloc keeps the least and costs the least, but is not in what is built for ARM.
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
    help="Lead topologies, too, that a Nimbus of Java's has led; it has to be stopped for good.",
)
@log_option
@conf_options
def nimbus(take_over: bool) -> None:
    """Run a Nimbus, the master of a cluster, or one that stands by.

    It listens on nimbus.bind.host and nimbus.thrift.port, and prints `nimbus listening on
    HOST:PORT` when it answers. Of several, ZooKeeper says which one leads. Metrics and health are
    on nimbus.metrics.port. SIGTERM and SIGINT stop it: another one leads then, and topologies run
    on.
    """
    from stormkeeper.daemon.lifecycle import StopSignals

    # Before anything that takes time: a stop is heeded from now on.
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

    It registers in the ZooKeeper of storm.zookeeper.servers, fetches the code of topologies that
    are assigned to it, and runs one worker in each slot of supervisor.slots.ports. It prints
    `supervisor ready ID` when it can take work. SIGTERM and SIGINT stop it. The workers go on then,
    and the next supervisor with the same storm.local.dir looks after them again; to end them, use
    `storm kill_workers`.

    Workers run as this user, with this user's rights.

    Needs the extra stormkeeper[spark]; exit code 69: it is not installed.
    """
    from stormkeeper.daemon.lifecycle import StopSignals

    # Before anything that takes time: a stop is heeded from now on.
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
    """End all workers of this machine's supervisor, and wait until nothing is left of them.

    It takes those of the supervisor that has, or had, the same storm.local.dir. Each is asked to
    end, finishes its running batch, and is killed if it takes longer than 27 s and
    supervisor.worker.shutdown.sleep.secs. If the supervisor runs, it starts them again: stop it
    first.

    Exit code 1: some could not be ended.
    """
    conf = load_conf()
    from stormkeeper.supervisor import local_state
    from stormkeeper.supervisor.directories import Directories
    from stormkeeper.supervisor.slot_model import SlotTimeouts
    from stormkeeper.supervisor.worker_processes import end_workers

    with faults():
        directories = Directories.from_conf(conf)
        if local_state.is_held(directories.local_state):
            click.echo("storm: a supervisor runs here, and will start its workers again", err=True)
        ended = end_workers(directories, SlotTimeouts.from_conf(conf).grace)
    if as_json:
        said = [
            {
                "worker_id": one.worker_id,
                "topology": one.storm_id,
                "port": one.port,
                "pid": one.pid,
                "by_force": one.by_force,
            }
            for one in ended
        ]
        click.echo(json.dumps(said))
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
    """Run the health checks of this machine once, as its supervisor does every 30 s.

    The checks are the executables in storm.health.check.dir. One fails if its exit code is not 0,
    or if it takes longer than storm.health.check.timeout.ms.

    Exit code 1: one or more failed; a supervisor here takes no new work then.
    """
    conf = load_conf()
    from stormkeeper.supervisor import health

    with faults():
        failed = health.check(conf)
    if as_json:
        said = [{"name": one.name, "reason": one.reason} for one in failed]
        click.echo(json.dumps({"healthy": not failed, "failed": said}))
        exit_with(1 if failed else 0)
    if failed:
        raise Fault(
            "\n".join(f"the health check {one.name} failed: {one.reason}" for one in failed)
        )
    click.echo("healthy")
