"""Parts of all commands: options for configuration and files, groups, errors, exit codes.

``-c``, ``--config`` and ``--strict`` stand before or after a command's name, and are merged in
order.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from stormkeeper.errors import ConfigError, MissingExtraError, StormkeeperError
from stormkeeper.names import path_fault, printable

if TYPE_CHECKING:
    from stormkeeper.conf import Conf, Unknown

C = TypeVar("C", bound=click.Command)

#: The key of our options in click's context, which a command shares with its groups.
_META: Final = "stormkeeper.settings"

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

#: Longer than any retention, and short enough for a date.
_LONGEST_SECS: Final = 100 * 365 * 86_400

#: Longer than any summary, so that click cuts none off.
_SUMMARY_WIDTH: Final = 1_000


class Fault(click.ClickException):
    """Ends the command with an error line: not found, refused or failed."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._is_logged = _logs_json()

    def show(self, file: Any = None) -> None:
        """Print the line, or write a log record with ``--log-json``."""
        if self._is_logged:
            logging.getLogger("storm").error("%s", self.format_message())
        else:
            # The message may quote a Nimbus or a file.
            text = printable(self.format_message(), keep="\n")
            click.echo(f"storm: {text}", file=file, err=file is None)


class ConfigFault(Fault):
    """Ends the command with an error line: the configuration is wrong."""

    exit_code = 2


class UnansweredFault(Fault):
    """Ends the command with an error line: a server did not answer, or refused."""

    exit_code = 3


class MissingExtraFault(Fault):
    """Ends the command with an error line: an extra is not installed."""

    exit_code = 69


class Group(click.Group):
    """A click group that prints the whole summary of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(_SUMMARY_WIDTH)) for name, command in found if command
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@dataclass
class ConfOptions:
    """The configuration options of the command line, in the order given."""

    overrides: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    strict: bool = False
    log_json: bool = False


def examples(*lines: str) -> str:
    """Return the examples at the end of a command's help."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def command(
    *lines: str,
    name: str | None = None,
    group: click.Group | None = None,
    cls: type[click.Command] = click.Command,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator for a command with examples and configuration options."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        made = click.command(name, cls=cls, epilog=examples(*lines))(function)
        if group is not None:
            group.add_command(made)
        return conf_options(made)

    return decorate


def command_group(*lines: str) -> Callable[[Callable[..., Any]], Group]:
    """Return a decorator for a group of commands, with examples and configuration options."""

    def decorate(function: Callable[..., Any]) -> Group:
        return conf_options(click.group(cls=Group, epilog=examples(*lines))(function))

    return decorate


def settings() -> ConfOptions:
    found = click.get_current_context().meta.setdefault(_META, ConfOptions())
    assert isinstance(found, ConfOptions)
    return found


def conf_options(command: C) -> C:
    """Add ``-c``, ``--config`` and ``--strict``."""

    def add_overrides(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> None:
        settings().overrides.extend(values)

    def add_files(_: click.Context, __: click.Parameter, values: tuple[Path, ...]) -> None:
        settings().files.extend(values)

    def set_strict(_: click.Context, __: click.Parameter, value: bool) -> None:
        settings().strict |= value

    for option in (
        click.option(
            "-c",
            "overrides",
            metavar="KEY=VALUE",
            multiple=True,
            expose_value=False,
            callback=add_overrides,
            help="Set a configuration key; VALUE is YAML. Repeatable.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            # The reader reports an unreadable file as any fault.
            type=click.Path(path_type=Path, readable=False),
            multiple=True,
            expose_value=False,
            callback=add_files,
            help="Read FILE instead of storm.yaml of $STORM_CONF_DIR or ~/.storm.",
        ),
        click.option(
            "--strict",
            is_flag=True,
            expose_value=False,
            callback=set_strict,
            help="An unknown configuration key is an error, not a warning.",
        ),
    ):
        command = option(command)
    return command


def _set_log_json(_: click.Context, __: click.Parameter, value: bool) -> None:
    if value:
        from stormkeeper.daemon.logs import configure_logging

        configure_logging(as_json=True)
        settings().log_json = True


log_option = click.option(
    "--log-json",
    is_flag=True,
    expose_value=False,
    is_eager=True,  # before the other options are checked
    callback=_set_log_json,
    help="Log one JSON object a line, on stderr, the line that says ready included.",
)

watch_option = click.option(
    "--watch",
    "is_watched",
    is_flag=True,
    help="Print each name that comes or goes, until Ctrl-C.",
)


def as_age(_: click.Context, __: click.Parameter, given: str | None) -> timedelta | None:
    """Return a length of time before now, given as 90s, 15m, 2h or 7d; a callback."""
    if given is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", given)
    secs = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < secs <= _LONGEST_SECS:
        raise click.BadParameter(f"{given!r} is no length of time such as 90s, 15m, 2h or 7d")
    return timedelta(seconds=secs)


def normal_path(path: str) -> str:
    """Return a path with a slash before each part."""
    return "/" + "/".join(part for part in path.split("/") if part)


def as_path(_: click.Context, __: click.Parameter, given: str) -> str:
    """Return a path of the cluster state; a callback."""
    path = normal_path(given)
    if fault := path_fault(path):
        raise click.BadParameter(fault)
    return path


def load_conf(unknown: "Unknown" = "warn") -> "Conf":
    """Read the configuration with the running command's options; a fault ends the command.

    For unknown keys, ``--strict`` makes "warn" an "error"; "keep" stays, as a topology checks them.
    """
    with faults():
        return read_conf(unknown)


def load_daemon_conf(*, has_clients: bool = False, unknown: "Unknown" = "warn") -> "Conf":
    """Read a daemon's configuration, and warn of keys that are unsafe or have no effect.

    With `has_clients`, Storm's access control is an error: the daemon would be open to anyone.
    """
    conf = load_conf(unknown)
    from stormkeeper.conf import access_control

    with faults():
        warnings = access_control.check(conf) if has_clients else []
    warnings += [*access_control.without_effect(conf), *access_control.readable_secrets(conf)]
    for line in warnings:
        _warn(line)
    return conf


def read_conf(
    unknown: "Unknown" = "warn",
    warn: Callable[[str], None] | None = None,
    instead_of: "Conf | None" = None,
) -> "Conf":
    """Read the configuration as `load_conf` does, but raise `ConfigError`.

    `warn` takes each warning; `instead_of` is the configuration in force at a reload.
    """
    from stormkeeper import conf

    given = settings()
    return conf.load(
        files=given.files or None,
        overrides=given.overrides,
        unknown="error" if given.strict and unknown == "warn" else unknown,
        warn=_warn if warn is None else warn,
        instead_of=instead_of,
    )


def log_warning(line: str) -> None:
    logging.getLogger("storm").warning("%s", line)


@contextmanager
def faults() -> Iterator[None]:
    """Turn a `StormkeeperError` into a `Fault` with the exit code."""
    try:
        yield
    except ConfigError as error:
        raise ConfigFault(str(error)) from error
    except MissingExtraError as error:
        raise MissingExtraFault(str(error)) from error
    except StormkeeperError as error:
        raise Fault(str(error)) from error


def exit_with(code: int) -> NoReturn:
    click.get_current_context().exit(code)


def _warn(line: str) -> None:
    if _logs_json():
        log_warning(line)
    else:
        click.echo(f"storm: warning: {printable(line)}", err=True)


def _logs_json() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and _META in context.meta and settings().log_json
