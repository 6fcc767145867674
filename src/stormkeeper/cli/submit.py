"""``storm submit``, also ``storm jar``: submits a topology to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from stormkeeper.cli import nimbus_command, options
from stormkeeper.cli.nimbus_command import interrupted_with, waiting, waiting_options
from stormkeeper.cli.options import ScriptCommand, examples, faults, load_conf, settings
from stormkeeper.cli.output import Progress
from stormkeeper.cli.topology_settings import read_credentials

if TYPE_CHECKING:
    from stormkeeper.client.package_builder import SubmissionRequest
    from stormkeeper.client.topology_submission import SubmittedTopology
    from stormkeeper.client.wait import WaitStatus
    from stormkeeper.conf import Conf

#: Seconds until the first batches: a worker may have to build its environment.
_TIMEOUT = 300.0
#: The key of the script's arguments in click's context.
_ARGUMENTS = "stormkeeper.arguments"


class _SubmitCommand(ScriptCommand):
    """Keeps the words after ``--`` for the script, so that the first is not taken for NAME."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_ARGUMENTS] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


def _packages(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    from stormkeeper.topology.package.manifest import JVM_PACKAGE

    packages = [name for names in given for name in names.split(",") if name]
    for package in packages:
        if not JVM_PACKAGE.fullmatch(package):
            raise click.BadParameter(f"{package} is no GROUP:NAME:VERSION")
    return tuple(packages)


@click.command(
    cls=_SubmitCommand,
    epilog=examples(
        "storm submit examples/word_count.py",
        "storm submit my_topology.py nightly-counts -c topology.workers=2 -c input=/data/in",
        "storm submit my_topology.py nightly-counts --from nightly-counts",
        "storm submit my_topology.py nightly-counts --from nightly-counts --abandon totals",
        "storm submit my_project/ --requirements my_project/requirements.lock",
        "storm submit my_job.py --py-files helpers.py,vendored.zip -- --day 2026-03-01",
        "storm jar my_job-1.0-py3-none-any.whl my-job --no-wait",
    ),
)
@click.argument("code", metavar="FILE|DIR|WHEEL", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@click.option(
    "--py-files",
    metavar="FILE[,FILE...]",
    multiple=True,
    callback=options.py_files,
    help="Send these modules (.py) and archives of modules (.zip, .egg) with the code, for Spark's"
    " executors too.",
)
@click.option(
    "--requirements",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Install what FILE names, in place of the requirements.txt beside the code.",
)
@click.option(
    "--with-wheels",
    is_flag=True,
    help="Send the wheels of the requirements too, for machines that cannot fetch them.",
)
@click.option(
    "--jars",
    metavar="FILE[,FILE...]",
    multiple=True,
    callback=options.files_of(".jar"),
    help="Send these jars with the code.",
)
@click.option(
    "--packages",
    metavar="GROUP:NAME:VERSION[,...]",
    multiple=True,
    callback=_packages,
    help="Have Spark fetch these packages from a Maven repository.",
)
@click.option(
    "--credentials",
    "secrets",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help="Send the secrets in FILE (- is standard input) as credentials: a line KEY=VALUE for each,"
    " or one JSON object. The topology finds them in its conf.",
)
@click.option(
    "--from",
    "going_on_from",
    metavar="TOPOLOGY",
    help="Continue from the checkpoints of a killed topology, by its id, or by its name for the"
    " last topology of that name.",
)
@click.option(
    "--abandon",
    metavar="QUERY",
    multiple=True,
    help="With --from: a query that starts afresh, as its checkpoint is on a lost disk."
    " Repeatable.",
)
@waiting_options(f"{_TIMEOUT:.0f} s")
def submit(
    *,
    code: Path,
    name: str | None,
    py_files: tuple[Path, ...],
    requirements: Path | None,
    with_wheels: bool,
    jars: tuple[Path, ...],
    packages: tuple[str, ...],
    secrets: TextIO | None,
    going_on_from: str | None,
    abandon: tuple[str, ...],
    no_wait: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Submit a topology to the cluster, to run until it is killed.

    FILE defines a Topology, or is any PySpark streaming script. In a folder (DIR) the command runs
    __main__.py or topology.py; in a WHEEL, the __main__.py of its package. requirements.txt beside
    the code names packages to install. NAME is the name in the cluster, by default the topology's
    own name. Arguments of the script follow --.

    The command checks everything on this machine before it sends anything, and reports faults with
    file and line. -c sets keys of the topology's conf; keys of nimbus.*, storm.nimbus.* and
    storm.thrift.* concern the connection to Nimbus, and are not sent. An unknown key that looks
    like a known one, or begins with topology., causes a warning.

    Then the command waits until each query has completed a batch, and prints what is missing; a
    query without data counts after 10 s. If a worker crashes, the command prints the error and
    ends. Ctrl-C ends only the wait.

    Exit code 0: the topology runs, or --no-wait. 1: the topology has a fault, Nimbus refused it, or
    Nimbus did not answer. 2: wrong usage or configuration. 4: the topology is submitted, and does
    not run yet, or has crashed. 69: the script has to be run, or requires something, and the extra
    stormkeeper[spark] is not installed.
    """
    conf = load_conf(unknown="keep")
    with faults():
        credentials = {} if secrets is None else read_credentials(secrets)
    from stormkeeper.client import package_builder

    request = package_builder.SubmissionRequest(
        code=code,
        name=name,
        arguments=click.get_current_context().meta[_ARGUMENTS],
        py_files=py_files,
        jars=jars,
        jvm_packages=packages,
        requirements=requirements,
        with_wheels=with_wheels,
        files=tuple(settings().files),
        overrides=tuple(settings().overrides),
        credentials=credentials,
    )
    wait_secs = 0.0 if no_wait else timeout or _TIMEOUT
    with faults(), Progress() as progress:
        submitted, seen = _submit(
            conf, request, (going_on_from, abandon), progress, wait_secs, as_json=as_json
        )
    if as_json:
        nimbus_command.print_json(
            name=submitted.name,
            id=submitted.storm_id,
            package_bytes=submitted.package_bytes,
            **nimbus_command.status_values(seen),
        )
    nimbus_command.end(submitted.name, seen, wait_secs)


def _submit(
    conf: Conf,
    request: SubmissionRequest,
    checkpoints: tuple[str | None, tuple[str, ...]],
    progress: Progress,
    wait_secs: float,
    *,
    as_json: bool,
) -> tuple[SubmittedTopology, WaitStatus | None]:
    from stormkeeper.client import (
        package_builder,
        submission_conf,
        topology_commands,
        topology_submission,
    )
    from stormkeeper.client.nimbus_connection import connect

    listener = topology_submission.SubmissionListener(
        say=progress.step,
        sent=lambda arrived, size: progress.step(
            f"uploading {size / 1e3:,.0f} kB", f"{100 * arrived / size:.0f} %"
        ),
        warn=lambda text: progress.remark(f"warning: {text}"),
        strict=settings().strict,
    )
    for text in submission_conf.command_line_warnings(conf):
        listener.report_unknown_key(text)
    with (
        package_builder.collect_code(request) as code,
        connect(conf, say=progress.say) as connection,
    ):
        going_on_from, abandon = checkpoints
        submitted = topology_submission.submit(
            connection, conf, request, code, listener, going_on_from=going_on_from, abandon=abandon
        )
        name = submitted.name
        progress.wipe()
        if not as_json:
            click.echo(f"Finished submitting topology: {name}")
        if not wait_secs:
            return submitted, None
        stays = f"{name} stays submitted, as {submitted.storm_id}; see `storm status {name}`"
        with interrupted_with(progress, stays):
            seen = topology_commands.wait_for_first_batches(
                connection, name, waiting(progress, name, wait_secs)
            )
        return submitted, seen
