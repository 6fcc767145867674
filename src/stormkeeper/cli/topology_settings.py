"""``storm upload-credentials`` and ``storm set_log_level``: settings of a running topology.

No message contains a credential, since output is often kept.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from typing import Final, NamedTuple, TextIO

import click

from stormkeeper.cli.nimbus_command import connected, json_option, print_json
from stormkeeper.cli.options import ConfigFault, conf_options, examples, faults
from stormkeeper.daemon.logs import LEVELS
from stormkeeper.errors import ConfigError
from stormkeeper.names import printable

#: ``LOGGER=LEVEL`` or ``LOGGER=LEVEL:SECS``.
_SETTING: Final = re.compile(r"(?P<logger>[^=]+)=(?P<level>[A-Za-z]+)(:(?P<secs>[0-9]{1,9}))?")


class _LevelSetting(NamedTuple):
    level: str
    #: None: until the level is removed.
    secs: int | None


@click.command(
    "upload-credentials",
    epilog=examples(
        "storm upload-credentials word-count -f credentials.txt",
        "gpg --decrypt credentials.gpg | storm upload-credentials word-count -f -",
        "storm upload-credentials word-count -f credentials.txt -u bob",
    ),
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
@conf_options
def upload_credentials(
    *, name: str, file: TextIO | None, pairs: tuple[str, ...], user: str | None, as_json: bool
) -> None:
    """Give topology NAME credentials; credentials under other keys stay.

    ZooKeeper keeps them for the topology's workers. A worker reads them at its next start:
    `storm rebalance NAME` restarts all workers. --json prints the topology's name and the keys, but
    no values.

    Exit code 1: there is no such topology, or Nimbus refused or did not answer. 2: wrong usage, or
    invalid credentials.
    """
    with faults():
        credentials = {} if file is None else read_credentials(file)
        credentials |= credentials_of_pairs(pairs)
        if not credentials:
            raise ConfigFault("no credentials are given: name a file with -f FILE")
    with connected() as connection:
        from stormkeeper.thrift.records import Credentials

        connection.nimbus.uploadNewCredentials(name, Credentials(credentials, topoOwner=user))
    if as_json:
        print_json(name=name, keys=sorted(credentials))
    else:
        click.echo(f"Uploaded new creds to topology: {name}")
        click.echo(
            "Its workers read them at their next start:"
            f" `storm rebalance {name} -w 0` restarts them"
        )


def read_credentials(file: TextIO) -> dict[str, str]:
    """Return the credentials in a file; raises `ConfigError` for a fault."""
    where = "standard input" if file.name == "<stdin>" else file.name
    try:
        return credentials_of_text(file.read(), where)
    except UnicodeDecodeError:
        raise ConfigError(f"{where} is not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error


def credentials_of_text(text: str, where: str) -> dict[str, str]:
    r"""Return the credentials in a text: a JSON object, or a line ``KEY=VALUE`` for each.

    Empty lines and lines that begin with ``#`` are skipped. A value of several lines needs JSON.
    Raises `ConfigError` with the name `where` of the text.

    Examples
    --------
    >>> credentials_of_text("# of the bank\nuser = bob\npassword=a=b\n", "FILE")
    {'user': 'bob', 'password': 'a=b'}
    """
    if text.lstrip().startswith("{"):
        return _from_json(text, where)
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            _put(found, line, f"line {number} of {where}")
    return found


def credentials_of_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Return the credentials of texts ``KEY=VALUE``; raises `ConfigError`."""
    found: dict[str, str] = {}
    for number, pair in enumerate(pairs, start=1):
        _put(found, pair, f"credential {number} of the command line")
    return found


def _put(found: dict[str, str], text: str, where: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{where} is no KEY=VALUE")
    if key.strip() in found:
        raise ConfigError(f"{where}: {key.strip()} is there twice")
    found[key.strip()] = value.strip()


def _from_json(text: str, where: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        # The message of a JSON error has a position, and none of the text.
        raise ConfigError(f"{where} is no JSON: {error}") from None
    if not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(f"{where} has a value that is no text: put it in quotes")
    return dict(found)


def _level(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> dict[str, _LevelSetting]:
    found = {}
    for text in given:
        parsed = _SETTING.fullmatch(text)
        if parsed is None:
            raise click.BadParameter(f"{text!r} is no LOGGER=LEVEL or LOGGER=LEVEL:SECS")
        level = parsed["level"].upper()
        if level not in LEVELS:
            raise click.BadParameter(f"{level} is none of {', '.join(LEVELS)}")
        secs = int(parsed["secs"]) if parsed["secs"] else None
        found[parsed["logger"]] = _LevelSetting(level, secs)
    return found


@click.command(
    "set_log_level",
    epilog=examples(
        "storm set_log_level word-count -l ROOT=DEBUG:30",
        "storm set_log_level word-count -l my_module=WARN -l org.apache.kafka=INFO",
        "storm set_log_level word-count -r my_module",
    ),
)
@click.argument("name")
@click.option(
    "-l",
    "--level",
    "levels",
    metavar="LOGGER=LEVEL[:SECS]",
    multiple=True,
    callback=_level,
    help="Set the level of LOGGER, and of the loggers below it, for SECS seconds, or until it is"
    " removed. LEVEL is ALL, TRACE, DEBUG, INFO, WARN, ERROR, FATAL or OFF. ROOT is the root"
    " logger. Repeatable.",
)
@click.option(
    "-r", "--remove", "removed", metavar="LOGGER", multiple=True, help="Restore LOGGER's own level."
)
@json_option
@conf_options
def set_log_level(
    *, name: str, levels: dict[str, _LevelSetting], removed: tuple[str, ...], as_json: bool
) -> None:
    """Change log levels of the running workers of topology NAME.

    A level holds, within seconds, for the Python loggers of each worker and for those of its Spark
    driver; not for executors on other machines. `storm logs` prints the logs. Without -l and -r,
    the command prints the levels that are set.

    Exit code 1: there is no such topology, or Nimbus refused or did not answer. 2: wrong usage.
    """
    with connected() as connection:
        from stormkeeper.thrift.records import LogConfig, LogLevel, LogLevelAction

        storm_id = connection.nimbus.getTopologySummaryByName(name).id
        changes = {
            logger: LogLevel(LogLevelAction.UPDATE, each.level, each.secs)
            for logger, each in levels.items()
        }
        changes |= {logger: LogLevel(LogLevelAction.REMOVE) for logger in removed}
        if changes:
            connection.nimbus.setLogConfig(storm_id, LogConfig(changes))
        found = connection.nimbus.getLogConfig(storm_id).named_logger_level or {}
    now_ms = time.time() * 1000
    left = {
        logger: (each.target_log_level or "", each.reset_log_level_timeout_epoch)
        for logger, each in sorted(found.items())
        if (each.reset_log_level_timeout_epoch or now_ms + 1) > now_ms
    }
    if as_json:
        print_json(name=name, levels={logger: level for logger, (level, _) in left.items()})
        return
    for logger, (level, ends_ms) in left.items():
        ends = "" if ends_ms is None else f", for {max(1, round((ends_ms - now_ms) / 1000))} s"
        click.echo(f"{printable(logger)}={printable(level)}{ends}")
    if not left:
        click.echo(f"no log level is set for {name}")
