"""``-c``, ``--config`` and ``--strict``: on every command that reads a configuration.

They stand before or after its name; what stands before and after is merged in its order, and read
before the command does anything. The commands that run a daemon have ``--log-json`` as well.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from stormkeeper.errors import ConfigError, MissingExtraError, StormkeeperError
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.conf import Conf, Unknown

F = TypeVar("F", bound=Callable[..., Any])

#: Where the context, which click shares between a command and the groups above it, keeps ours.
_META = "stormkeeper.settings"


class Fault(click.ClickException):
    """Ends the command with one line on stderr: not found, refused or failed."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._is_logged = _logs_json()

    def show(self, file: Any = None) -> None:
        """Write the line."""
        if self._is_logged:
            logging.getLogger("storm").error("%s", self.format_message())
        else:
            # A Nimbus, or a file, may have put anything into it.
            text = printable(self.format_message(), keep="\n")
            click.echo(f"storm: {text}", file=file, err=file is None)


class ConfigFault(Fault):
    """Ends the command with one line on stderr: the configuration is wrong."""

    exit_code = 2


class UnansweredFault(Fault):
    """Ends the command with one line on stderr: a server did not answer, or refused."""

    exit_code = 3


class MissingExtraFault(Fault):
    """Ends the command with one line on stderr: an extra is not installed."""

    exit_code = 69


@dataclass
class Settings:
    """What the command line says about the configuration.

    Parameters
    ----------
    overrides
        The ``-c`` values, in their order.
    files
        The ``--config`` files, in their order.
    strict
        Whether ``--strict`` was given.
    log_json
        Whether ``--log-json`` was given.
    """

    overrides: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    strict: bool = False
    log_json: bool = False


def examples(*lines: str) -> str:
    """Return the examples at the end of a command's help."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def settings() -> Settings:
    """Return the running command's options for the configuration."""
    found = click.get_current_context().meta.setdefault(_META, Settings())
    assert isinstance(found, Settings)
    return found


def conf_options(command: F) -> F:
    """Give a command or a group the three options."""

    def add_overrides(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> None:
        settings().overrides.extend(values)

    def add_files(_: click.Context, __: click.Parameter, values: tuple[Path, ...]) -> None:
        settings().files.extend(values)

    def set_strict(_: click.Context, __: click.Parameter, value: bool) -> None:
        settings().strict |= value

    for option in (
        click.option(
            "--strict",
            is_flag=True,
            expose_value=False,
            callback=set_strict,
            help="An unknown configuration key is an error, not a warning.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            # Whether it can be read is for who reads it to say, in a line as of any other fault.
            type=click.Path(path_type=Path, readable=False),
            multiple=True,
            expose_value=False,
            callback=add_files,
            help="Read FILE instead of storm.yaml of $STORM_CONF_DIR or ~/.storm.",
        ),
        click.option(
            "-c",
            "overrides",
            metavar="KEY=VALUE",
            multiple=True,
            expose_value=False,
            callback=add_overrides,
            help="Set a configuration key; VALUE is YAML. Repeatable.",
        ),
    ):
        command = option(command)
    return command


def log_option(command: F) -> F:
    """Give the command of a daemon ``--log-json``."""

    def set_log_json(_: click.Context, __: click.Parameter, value: bool) -> None:
        if value:
            from stormkeeper.daemon.logs import configure_logging

            configure_logging(as_json=True)
            settings().log_json = True

    return click.option(
        "--log-json",
        is_flag=True,
        expose_value=False,
        is_eager=True,  # before the other options are judged
        callback=set_log_json,
        help="Log one JSON object a line, on stderr; what says that it is ready, too.",
    )(command)


def watch_option(command: F) -> F:
    """Give a command that lists names ``--watch``."""
    return click.option(
        "--watch", "is_watched", is_flag=True, help="Go on with what comes and goes, until Ctrl-C."
    )(command)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """End normally on Ctrl-C."""
    with suppress(KeyboardInterrupt):
        yield


def _logs_json() -> bool:
    """Whether the running command, if one runs, writes its log as JSON."""
    context = click.get_current_context(silent=True)
    return context is not None and _META in context.meta and settings().log_json


def load_conf(unknown: "Unknown" = "warn") -> "Conf":
    """Read the configuration with the options of the running command.

    Parameters
    ----------
    unknown
        What to do with keys that nobody knows. With ``--strict`` "warn" is "error"; "keep" stays,
        as whoever they are kept for will judge them.

    Raises
    ------
    ConfigFault
        When something in it is wrong.
    """
    with faults():
        return read_conf(unknown)


def load_daemon_conf(*, has_clients: bool = False, unknown: "Unknown" = "warn") -> "Conf":
    """Read a daemon's configuration, and warn of what in it is unsafe or has no effect.

    Parameters
    ----------
    has_clients
        Whether the daemon would be open to anyone although the configuration asks for access
        control (`stormkeeper.conf.access_control`).
    unknown
        As for `load_conf`.

    Raises
    ------
    ConfigFault
        When something in it is wrong, or `has_clients` and it asks for access control.
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
    """Read what `load_conf` reads, for a daemon that goes on if it is wrong.

    Parameters
    ----------
    unknown
        As for `load_conf`.
    warn
        Takes each warning; None: as the command's own line on stderr.
    instead_of
        What holds, where it is read anew (`stormkeeper.conf.load`).

    Raises
    ------
    ConfigError
        When something in it is wrong.
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


def _warn(line: str) -> None:
    if _logs_json():
        log_warning(line)
    else:
        click.echo(f"storm: warning: {printable(line)}", err=True)


def log_warning(line: str) -> None:
    """Log a warning of the command's, in a process whose log is set up."""
    logging.getLogger("storm").warning("%s", line)


@contextmanager
def faults() -> Iterator[None]:
    """Turn what our code raises on purpose into a `Fault`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigFault(str(error)) from error
    except MissingExtraError as error:
        raise MissingExtraFault(str(error)) from error
    except StormkeeperError as error:
        raise Fault(str(error)) from error


def exit_with(code: int) -> NoReturn:
    """End the command with that exit code."""
    click.get_current_context().exit(code)
