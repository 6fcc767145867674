"""``storm local``: a whole cluster on this machine, for one topology."""

from pathlib import Path

import click

from stormkeeper.cli.options import conf_options, examples, exit_with, faults, load_conf, settings


def _py_files(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[Path, ...]:
    files = [Path(name) for names in given for name in names.split(",") if name]
    for file in files:
        if file.suffix not in {".py", ".zip", ".egg"}:
            raise click.BadParameter(f"{file} is no .py, .zip or .egg file")
        if not file.is_file():
            raise click.BadParameter(f"there is no file {file}")
    return tuple(file.absolute() for file in files)


@click.command(
    epilog=examples(
        "storm local examples/word_count.py",
        "storm local examples/word_count.py --seconds 60 --report report.json",
        "storm local my_topology.py -c input=/data/in -c 'spark.master=local[2]'",
        "storm local my_job.py --py-files helpers.py,vendored.zip -- --day 2026-03-01",
    )
)
@click.argument("topology", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--py-files",
    metavar="FILE[,FILE...]",
    multiple=True,
    callback=_py_files,
    help="Modules (.py) and archives of modules (.zip, .egg) that TOPOLOGY can import, in Spark's "
    "executors too.",
)
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
def local(
    topology: Path,
    arguments: tuple[str, ...],
    py_files: tuple[Path, ...],
    seconds: float | None,
    report: Path | None,
) -> None:
    """Run TOPOLOGY on a cluster of its own, on this machine.

    Starts ZooKeeper, two Pacemakers, the worker that runs TOPOLOGY, and the heartbeat pipeline, as
    processes on free ports of the loopback interface, and shows them live. Ctrl-C stops all of
    them. First counts take about half a minute, in which Spark starts in the worker and in the
    pipeline.

    TOPOLOGY is a Python file that defines a Topology, or any PySpark streaming script. ARGUMENTS
    are its sys.argv; they stand behind --, so that none is taken for an option of storm's.

    What is wrong with it and can be seen in its source is said before anything starts.

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
        arguments=arguments,
        py_files=py_files,
    )
    with faults():
        code = cluster.run(conf, request)
    exit_with(code)
