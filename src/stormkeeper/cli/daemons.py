"""The commands that run a daemon until it is told to stop."""

import os
import platform

import click

from stormkeeper import extras
from stormkeeper.cli.options import (
    conf_options,
    examples,
    exit_with,
    faults,
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
