"""``storm config``: whether a file of configuration is right, before anything reads it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stormkeeper.cli.groups import Group
from stormkeeper.cli.options import examples, exit_with

if TYPE_CHECKING:
    from stormkeeper.conf import Finding


@click.group(cls=Group, epilog=examples("storm config check storm.yaml"))
def config() -> None:
    """Look at files of configuration."""


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
    """Find all that is wrong in FILE, a storm.yaml: one finding a line.

    It reports what the commands that read FILE report, but does not stop at the first error: values
    that a key cannot have, unknown keys, text that is no YAML, keys of Storm's access control,
    which Stormkeeper does not have, settings without effect, and passwords that every user of the
    machine can read. It looks at FILE alone, not at what -c and --config set elsewhere. Of the
    files that FILE names it opens only a JAAS file, and that only without pacemaker.auth.method.

    Exit code 0: nothing but warnings. 1: an error. 2: wrong usage, or there is no such file.
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
        click.echo(json.dumps({"file": str(file), "keys": len(keys), "findings": objects}))
    else:
        for finding in findings:
            click.echo(f"{'error' if finding.is_error else 'warning'}: {finding.message}")
        counts = {"key": len(keys), "error": errors, "warning": len(findings) - errors}
        told = [f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items() if n]
        told += [] if findings else ["all well"]
        click.echo(f"storm: {file}: {', '.join(told)}", err=True)
    exit_with(1 if errors else 0)


def _warnings(file: Path) -> "list[Finding]":
    """Return what daemons would warn of, for a file in which nothing is wrong."""
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
