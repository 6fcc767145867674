"""``storm local``: runs a topology on a whole cluster on this machine."""

import json
from pathlib import Path

import click

from stormkeeper import extras
from stormkeeper.cli import options
from stormkeeper.cli.options import (
    ScriptCommand,
    conf_options,
    examples,
    exit_with,
    faults,
    load_daemon_conf,
    settings,
)

_TABLES = "pipeline.tables.dir"


def _report(_: click.Context, __: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and not file.parent.is_dir():
        raise click.BadParameter(f"the folder {file.parent} does not exist")
    return file


@click.command(
    cls=ScriptCommand,
    epilog=examples(
        "storm local examples/word_count.py",
        "storm local examples/word_count.py --seconds 60 --report report.json",
        "storm local my_topology.py -c input=/data/in -c 'spark.master=local[2]'",
        "storm local my_job.py --py-files helpers.py,vendored.zip -- --day 2026-03-01",
    ),
)
@click.argument("topology", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--py-files",
    metavar="FILE[,FILE...]",
    multiple=True,
    callback=options.py_files,
    help="Modules (.py) and archives of modules (.zip, .egg) that TOPOLOGY can import, in Spark's "
    "executors too.",
)
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop after N seconds of running.",
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_report,
    help="Write a report to FILE, as JSON.",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the pipeline's tables in DIR: the same as -c pipeline.tables.dir=DIR.",
)
@click.option(
    "--no-pipeline",
    is_flag=True,
    help="Only the job, without the heartbeat pipeline: no liveness, half the memory.",
)
@conf_options
def local(
    *,
    topology: Path,
    arguments: tuple[str, ...],
    py_files: tuple[Path, ...],
    seconds: float | None,
    report: Path | None,
    keep: Path | None,
    no_pipeline: bool,
) -> None:
    """Run TOPOLOGY on a whole cluster on this machine.

    The command starts ZooKeeper, two Nimbuses, two supervisors, two Pacemakers and the heartbeat
    pipeline, as processes on free ports of the loopback interface, submits TOPOLOGY, and shows them
    live. Ctrl-C ends TOPOLOGY, and then all processes. Spark starts in the worker first, and in the
    pipeline when the worker has counted its first rows, or after a minute. The tables are removed
    at the end, unless --keep names a folder for them.

    TOPOLOGY is a Python file that defines a Topology, or any PySpark streaming script. Its
    ARGUMENTS, for sys.argv, follow --. Faults in its source are reported before anything starts.
    Configuration keys that Stormkeeper does not know go to TOPOLOGY. It runs in a folder of its
    own, as in any cluster: give it whole paths.

    Exit code 0: it was stopped, or all queries have ended. 1: TOPOLOGY has a fault or failed, or
    another process failed. 2: wrong usage or configuration. 69: the extra stormkeeper[spark] is not
    installed.
    """
    if keep is not None:
        _keep_tables_in(keep, no_pipeline=no_pipeline)
    with faults():
        extras.require("spark", "storm local")
    conf = load_daemon_conf(has_clients=True, unknown="keep")
    from stormkeeper.topology import script_source

    with faults():
        script_source.check(topology, py_files)
        script_source.check_starts(topology, py_files)
    # Imported after the check, since the import takes longer.
    from stormkeeper.local import local_cluster
    from stormkeeper.local.run_plan import RunRequest

    request = RunRequest(
        topology=topology,
        overrides=settings().overrides,
        seconds=seconds,
        report=report,
        strict=settings().strict,
        arguments=arguments,
        py_files=py_files,
        pipeline=not no_pipeline,
    )
    with faults():
        code = local_cluster.run(conf, request)
    exit_with(code)


def _keep_tables_in(folder: Path, *, no_pipeline: bool) -> None:
    overrides = settings().overrides
    if no_pipeline:
        raise click.UsageError("--keep is for the pipeline's tables: leave out --no-pipeline.")
    if any(override.partition("=")[0].strip() == _TABLES for override in overrides):
        raise click.UsageError(f"--keep DIR is -c {_TABLES}=DIR: give one of the two.")
    overrides.append(f"{_TABLES}={json.dumps(str(folder))}")
