"""``storm submit`` (also ``storm jar``), ``storm local`` and ``storm upload-credentials``.

No message contains a credential, since output is often kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from stormkeeper import extras
from stormkeeper.cli import connections
from stormkeeper.cli.connections import connected, json_option, waiting_options
from stormkeeper.cli.options import (
    ConfigFault,
    command,
    exit_with,
    faults,
    load_conf,
    load_daemon_conf,
    settings,
)
from stormkeeper.cli.output import Progress, print_json

#: A worker may have to build its environment before the first batches.
_TIMEOUT = 300.0
#: The key of the script's arguments in click's context.
_ARGUMENTS = "stormkeeper.arguments"
#: Suffixes of modules and of archives of modules.
_MODULES = (".py", ".zip", ".egg")

F = TypeVar("F", bound=Callable[..., Any])


class _ScriptCommand(click.Command):
    """A command for a script; the error for an unknown option explains ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = f"Options of the script follow --, as in: -- {error.option_name}"
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from error


def _files_option(name: str, *suffixes: str, text: str) -> Callable[[F], F]:
    """Return an option for existing files with these suffixes, comma-separated; `text` is help."""
    kinds = " or ".join(filter(None, [", ".join(suffixes[:-1]), suffixes[-1]]))

    def check(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[Path, ...]:
        files = [Path(name) for names in given for name in names.split(",") if name]
        for file in files:
            if file.suffix not in suffixes:
                raise click.BadParameter(f"{file} is no {kinds} file")
            if not file.is_file():
                raise click.BadParameter(f"there is no file {file}")
        return tuple(file.absolute() for file in files)

    return click.option(name, metavar="FILE[,FILE...]", multiple=True, callback=check, help=text)


class _SubmitCommand(_ScriptCommand):
    """Keeps the words after ``--`` for the script, so that the first is not taken for NAME."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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


@command(
    "storm submit examples/word_count.py",
    "storm submit my_topology.py nightly-counts -c topology.workers=2 -c input=/data/in",
    "storm submit my_topology.py nightly-counts --from nightly-counts",
    "storm submit my_topology.py nightly-counts --from nightly-counts --abandon totals",
    "storm submit my_project/ --requirements my_project/requirements.lock",
    "storm submit my_job.py --py-files helpers.py,vendored.zip -- --day 2026-03-01",
    "storm jar my_job-1.0-py3-none-any.whl my-job --no-wait",
    cls=_SubmitCommand,
)
@click.argument("code", metavar="FILE|DIR|WHEEL", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@_files_option(
    "--py-files",
    *_MODULES,
    text="Send these modules (.py) and archives of modules (.zip, .egg) with the code, for Spark's"
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
@_files_option("--jars", ".jar", text="Send these jars with the code.")
@click.option(
    "--packages",
    "jvm_packages",
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
    secrets: TextIO | None,
    going_on_from: str | None,
    abandon: tuple[str, ...],
    no_wait: bool,
    timeout: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a topology to the cluster, to run until it is killed.

    FILE defines a Topology, or is any PySpark streaming script. A folder (DIR) has a __main__.py or
    topology.py, a WHEEL the __main__.py of its package. requirements.txt beside the code names
    packages to install. NAME is the name in the cluster, by default the topology's own name.
    Arguments of the script follow --.

    The command checks everything on this machine before it sends anything, and reports faults with
    file and line. -c sets keys of the topology's conf; nimbus.*, storm.nimbus.* and storm.thrift.*
    concern the connection to Nimbus, and are not sent. An unknown key that looks like a known one,
    or begins with topology., causes a warning.

    Then the command waits until each query has completed a batch, and prints what is missing; a
    query without data counts after 10 s. A worker's crash ends the wait, and so does Ctrl-C.

    Exit code 0: the topology runs, or --no-wait. 1: the topology has a fault, or Nimbus refused it
    or did not answer. 2: wrong usage or configuration. 4: the topology is submitted, and does not
    run yet, or has crashed. 69: the script has to be run, or requires something, and the extra
    stormkeeper[spark] is not installed.
    """
    conf = load_conf(unknown="keep")
    from stormkeeper.client import package_builder

    with faults():
        credentials = {} if secrets is None else package_builder.read_credentials(secrets)
    request = package_builder.SubmissionRequest(
        arguments=click.get_current_context().meta[_ARGUMENTS],
        files=tuple(settings().files),
        overrides=tuple(settings().overrides),
        credentials=credentials,
        **options,
    )
    wait_secs = 0.0 if no_wait else timeout or _TIMEOUT
    with faults(), Progress() as progress, ExitStack() as stack:
        listener = package_builder.SubmissionListener(
            say=progress.step,
            sent=lambda arrived, size: progress.step(
                f"uploading {size / 1e3:,.0f} kB", f"{100 * arrived / size:.0f} %"
            ),
            warn=lambda text: progress.remark(f"warning: {text}"),
            strict=settings().strict,
        )
        given = [key for key in conf if conf.is_override(key)]
        listener.report_unknown_keys(given, "-c")
        packaged = stack.enter_context(package_builder.collect_code(request))
        described = stack.enter_context(package_builder.describing_code(request, packaged))
        # The script runs during these imports.
        from stormkeeper.client import topology_commands, topology_submission
        from stormkeeper.client.nimbus_connection import connect

        with connect(conf, say=progress.say) as connection:
            submitted = topology_submission.submit(
                connection,
                conf,
                request,
                packaged,
                listener,
                described=described,
                going_on_from=going_on_from,
                abandon=abandon,
            )
            progress.wipe()
            if not as_json:
                click.echo(f"Finished submitting topology: {submitted.name}")
            seen = connections.wait_for(
                progress,
                submitted.name,
                wait_secs,
                partial(topology_commands.wait_for_first_batches, connection, submitted.name),
                remark=f"{submitted.name} stays submitted, as {submitted.storm_id}; see"
                f" `storm status {submitted.name}`",
            )
    connections.end(
        submitted.name,
        seen,
        wait_secs,
        as_json=as_json,
        id=submitted.storm_id,
        package_bytes=submitted.package_bytes,
    )


def _report(_: click.Context, __: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and not file.parent.is_dir():
        raise click.BadParameter(f"the folder {file.parent} does not exist")
    return file


@command(
    "storm local examples/word_count.py",
    "storm local examples/word_count.py --seconds 60 --report report.json",
    "storm local my_topology.py -c input=/data/in -c 'spark.master=local[2]'",
    "storm local my_job.py --py-files helpers.py,vendored.zip -- --day 2026-03-01",
    cls=_ScriptCommand,
)
@click.argument("topology", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@_files_option(
    "--py-files",
    *_MODULES,
    text="Modules (.py) and archives of modules (.zip, .egg) that TOPOLOGY can import, in Spark's "
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
    "--no-pipeline",
    "pipeline",
    flag_value=False,
    default=True,
    help="Only the job, without the heartbeat pipeline: no liveness, half the memory.",
)
def local(*, topology: Path, py_files: tuple[Path, ...], **options: Any) -> None:
    """Run TOPOLOGY on a whole cluster on this machine.

    The command starts ZooKeeper, two Nimbuses, two supervisors, two Pacemakers and the heartbeat
    pipeline on free ports of the loopback interface, submits TOPOLOGY, and shows them live. Ctrl-C
    ends TOPOLOGY, and then all processes. The pipeline starts when the worker has counted its first
    rows, or after a minute. Its tables are removed at the end, unless -c pipeline.tables.dir=DIR
    names a folder.

    TOPOLOGY defines a Topology, or is any PySpark streaming script. Its ARGUMENTS follow --. Faults
    in its source are reported before anything starts. Unknown configuration keys go to TOPOLOGY. It
    runs in a folder of its own, as in any cluster: give it whole paths.

    Exit code 0: it was stopped, or all queries have ended. 1: TOPOLOGY has a fault or failed, or
    another process failed. 2: wrong usage or configuration. 69: the extra stormkeeper[spark] is not
    installed.
    """
    with faults():
        extras.require("spark", "storm local")
    conf = load_daemon_conf(has_clients=True, unknown="keep")
    from stormkeeper.topology import script_source

    with faults():
        script_source.check(topology, py_files)
        script_source.check_starts(topology, py_files)
    # After the check, since the import takes longer.
    from stormkeeper.local import local_cluster
    from stormkeeper.local.run_plan import RunRequest

    request = RunRequest(
        topology=topology,
        py_files=py_files,
        overrides=settings().overrides,
        strict=settings().strict,
        **options,
    )
    with faults():
        code = local_cluster.run(conf, request)
    exit_with(code)


@command(
    "storm upload-credentials word-count -f credentials.txt",
    "gpg --decrypt credentials.gpg | storm upload-credentials word-count -f -",
    "storm upload-credentials word-count -f credentials.txt -u bob",
    name="upload-credentials",
)
@click.argument("name")
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help="Read credentials from FILE, or from standard input with -: a line KEY=VALUE for each, or"
    " one JSON object.",
)
@click.option(
    "-e",
    "--credential",
    "pairs",
    metavar="KEY=VALUE",
    multiple=True,
    help="A credential, which overrides FILE. Repeatable. Other users of this machine can see it"
    " while the command runs, and the shell's history keeps it: use -f for secrets.",
)
@click.option("-u", "--user", metavar="USER", help="The topology's owner, if it is not you.")
@json_option
def upload_credentials(
    *, name: str, file: TextIO | None, pairs: tuple[str, ...], user: str | None, as_json: bool
) -> None:
    """Give topology NAME credentials; credentials under other keys stay.

    ZooKeeper keeps them. A worker reads them at its next start: `storm rebalance NAME` restarts
    all. --json prints the topology's name and the keys, but no values.

    Exit code 1: there is no such topology, or Nimbus refused or did not answer. 2: wrong usage, or
    invalid credentials.
    """
    from stormkeeper.client import package_builder

    with faults():
        credentials = {} if file is None else package_builder.read_credentials(file)
        credentials |= package_builder.credentials_of_pairs(pairs)
        if not credentials:
            raise ConfigFault("no credentials are given: name a file with -f FILE")
    with connected() as connection:
        from stormkeeper.thrift.records import Credentials

        connection.nimbus.uploadNewCredentials(name, Credentials(credentials, topoOwner=user))
    if as_json:
        print_json({"name": name, "keys": sorted(credentials)})
    else:
        click.echo(f"Uploaded new creds to topology: {name}")
        click.echo(
            "Its workers read them at their next start:"
            f" `storm rebalance {name} -w 0` restarts them"
        )
