"""Commands on this machine's installation and configuration; and ``storm remoteconfvalue``."""

import json
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import stormkeeper
from stormkeeper.cli.options import Fault, Group, command, examples, exit_with, load_conf
from stormkeeper.cli.output import note, print_json
from stormkeeper.daemon.logs import counted
from stormkeeper.extras import installed_version
from stormkeeper.names import as_text

if TYPE_CHECKING:
    from stormkeeper.conf import Finding


@click.group(cls=Group, epilog=examples("storm config check storm.yaml"))
def config() -> None:
    """Check configuration files."""


@config.command(
    epilog=examples(
        "storm config check ~/.storm/storm.yaml",
        "storm config check storm.yaml --strict",
        "storm config check storm.yaml --json",
    )
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--strict", is_flag=True, help="An unknown key is an error, not a warning.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(file: Path, strict: bool, as_json: bool) -> None:
    """Find all faults in FILE, a storm.yaml: one finding a line.

    The command reports what every command that reads FILE reports, but does not stop at the first
    error: invalid values, unknown keys, invalid YAML, keys of Storm's access control, which
    Stormkeeper does not have, settings without effect, and passwords that every user of the machine
    can read. It checks FILE alone, without -c and --config. Of the files named in FILE it opens
    only a JAAS file, and only without pacemaker.auth.method.

    Exit code 0: no errors, but maybe warnings. 1: an error. 2: wrong usage, or there is no such
    file.
    """
    from stormkeeper import conf
    from stormkeeper.conf import access_control

    keys, findings = conf.check(file, strict=strict)
    if not any(finding.is_error for finding in findings):
        findings += _warnings(file)
    findings += access_control.findings(file)
    errors = sum(finding.is_error for finding in findings)
    if as_json:
        objects = [
            {"key": finding.key, "error": finding.is_error, "message": finding.message}
            for finding in findings
        ]
        print_json({"file": str(file), "keys": len(keys), "findings": objects})
    else:
        for finding in findings:
            click.echo(f"{'error' if finding.is_error else 'warning'}: {finding.message}")
        counts = {"key": len(keys), "error": errors, "warning": len(findings) - errors}
        summary = [counted(number, noun) for noun, number in counts.items() if number]
        summary += [] if findings else ["all well"]
        note(f"{file}: {', '.join(summary)}")
    exit_with(1 if errors else 0)


def _warnings(file: Path) -> "list[Finding]":
    """Return the warnings of daemons for a file without errors."""
    from stormkeeper.conf import Finding, access_control, load
    from stormkeeper.errors import ConfigError
    from stormkeeper.pacemaker.server.daemon import without_effect

    try:
        conf = load(files=[file], unknown="keep")
        lines = [*without_effect(conf), *access_control.without_effect(conf)]
    except ConfigError as error:
        return [Finding(None, f"{file}: {error}", is_error=True)]
    findings = [Finding(None, f"{file}: {line}", is_error=False) for line in lines]
    readable = access_control.readable_secrets(conf)
    return [*findings, *(Finding(None, line, is_error=False) for line in readable)]


@command("storm version", "storm version --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Print the versions of Stormkeeper, Python, PySpark and Java."""
    versions = {
        "Stormkeeper": stormkeeper.__version__,
        "Python": platform.python_version(),
        "PySpark": installed_version("pyspark"),
        "Java": _java_version(),
    }
    if as_json:
        print_json({name.lower(): found for name, found in versions.items()})
        return
    for name, found in versions.items():
        click.echo(f"{name} {found or 'not found'}")


@command("storm localconfvalue pacemaker.servers", "storm localconfvalue nimbus.seeds --json")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, {KEY: value}.")
def localconfvalue(key: str, as_json: bool) -> None:
    """Print the value of configuration KEY on this machine.

    Prints `KEY: value` as Storm does, null for a key of Storm's that is not set.

    Exit code 1: the key is unknown and not set.
    """
    _print_value(key, load_conf(), as_json=as_json)


@command(
    "storm remoteconfvalue topology.message.timeout.secs",
    "storm remoteconfvalue storm.zookeeper.servers --json",
)
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, {KEY: value}.")
def remoteconfvalue(key: str, as_json: bool) -> None:
    """Print the value of configuration KEY in the leading Nimbus.

    Prints `KEY: value` as Storm does, null for a key of Storm's that is not set.

    Exit code 1: the key is unknown and not set, or Nimbus did not answer.
    """
    from stormkeeper.cli.connections import connected

    with connected() as connection:
        conf = json.loads(connection.nimbus.getNimbusConf())
    _print_value(key, conf, as_json=as_json)


def _print_value(key: str, conf: Mapping[str, Any], *, as_json: bool) -> None:
    from stormkeeper.conf import keys

    if key not in conf and not keys.is_known(key):
        alike = keys.nearest(key, list(conf))
        hint = f"; is {alike} meant?" if alike else ""
        raise Fault(f"there is no configuration key {key}{hint}")
    value = conf.get(key)
    click.echo(json.dumps({key: value}) if as_json else f"{key}: {as_java(value)}")


def as_java(value: Any) -> str:
    """Return a value as Java's ``toString``, which Storm prints."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{', '.join(map(as_java, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_java(k)}={as_java(v)}' for k, v in value.items())}}}"
    return as_text(value)


def _java_version() -> str | None:
    """Return the version of JAVA_HOME's Java, or else PATH's."""
    from stormkeeper.daemon.spark_environment import java_release

    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return None if java is None else java_release(Path(java))


SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=examples(
        "source <(storm completion bash)",
        "storm completion bash > ~/.local/share/bash-completion/completions/storm",
        'storm completion zsh > "${fpath[1]}/_storm"',
        "storm completion fish > ~/.config/fish/completions/storm.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands and options.

    The first example is for the running shell, the others for every later one; bash must be 4.4 or
    newer.
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    name = root.info_name or "storm"
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{name}_COMPLETE".replace("-", "_").upper()
    click.echo(kind(root.command, {}, name, variable).source())
