"""The commands that say what is installed and configured here."""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click

import stormkeeper
from stormkeeper.cli.options import Fault, conf_options, examples, load_conf

#: A JVM that has not printed its version by then is broken, in seconds.
_JAVA_DEADLINE = 20.0


@click.command(epilog=examples("storm version", "storm version --json"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@conf_options
def version(as_json: bool) -> None:
    """Print the versions of Stormkeeper and of what it runs on."""
    versions = {
        "stormkeeper": stormkeeper.__version__,
        "python": platform.python_version(),
        "pyspark": _installed("pyspark"),
        "java": _java_version(),
    }
    if as_json:
        click.echo(json.dumps(versions))
        return
    names = {
        "stormkeeper": "Stormkeeper",
        "python": "Python",
        "pyspark": "PySpark",
        "java": "Java",
    }
    for key, name in names.items():
        click.echo(f"{name} {versions[key] or 'not found'}")


@click.command(
    epilog=examples(
        "storm localconfvalue pacemaker.servers", "storm localconfvalue nimbus.seeds --json"
    )
)
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, {KEY: value}.")
@conf_options
def localconfvalue(key: str, as_json: bool) -> None:
    """Print the value that configuration KEY has here.

    Prints `KEY: value` as Storm does. A key of Storm's that nothing sets is null; a key that nobody
    knows and nothing sets ends with exit code 1.
    """
    _print_value(key, load_conf(), as_json=as_json)


@click.command(
    epilog=examples(
        "storm remoteconfvalue topology.message.timeout.secs",
        "storm remoteconfvalue storm.zookeeper.servers --json",
    )
)
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, {KEY: value}.")
@conf_options
def remoteconfvalue(key: str, as_json: bool) -> None:
    """Print the value that configuration KEY has in the leading Nimbus.

    Prints `KEY: value` as Storm does. Else as `storm localconfvalue`.
    """
    from stormkeeper.cli.effects import connected

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
    """Return a value as Java's ``toString`` gives it, which is how Storm prints it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(as_java, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_java(k)}={as_java(v)}' for k, v in value.items())}}}"
    return str(value)


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _java_version() -> str | None:
    """Return the version of the Java that a daemon would start: JAVA_HOME's, else PATH's."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_DEADLINE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "([^"]+)"', asked.stderr + asked.stdout)
    return found[1] if found else None
