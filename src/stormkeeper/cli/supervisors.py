"""The commands of a machine that has a supervisor: run it, end its workers, check the machine."""

import json

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
)


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
