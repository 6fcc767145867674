"""``storm local``: a whole cluster on this machine, for one topology."""

from pathlib import Path

import click

from stormkeeper.cli.options import conf_options, examples, exit_with, faults, load_conf, settings


@click.command(
    epilog=examples(
        "storm local examples/word_count.py",
        "storm local examples/word_count.py --seconds 60 --report report.json",
        "storm local my_topology.py -c input=/data/in -c 'spark.master=local[2]'",
    )
)
@click.argument("topology", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop by itself after N seconds of running.",
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write what was seen to FILE, as JSON.",
)
@conf_options
def local(topology: Path, seconds: float | None, report: Path | None) -> None:
    """Run TOPOLOGY on a cluster of its own, on this machine.

    Starts ZooKeeper, two Pacemakers, the worker that runs TOPOLOGY, and the heartbeat pipeline, as
    processes on free ports of the loopback interface, and shows them live. Ctrl-C stops all of
    them. First counts take about half a minute, in which Spark starts in the worker and in the
    pipeline.

    TOPOLOGY is a Python file that defines a Topology, or any PySpark streaming script.

    Keys that Stormkeeper does not know are the topology's own, and are handed to it.
    """
    conf = load_conf(unknown="keep")
    from stormkeeper.local import cluster

    request = cluster.Request(
        topology=topology,
        overrides=settings().overrides,
        seconds=seconds,
        report=report,
        strict=settings().strict,
    )
    with faults():
        code = cluster.run(conf, request)
    exit_with(code)
