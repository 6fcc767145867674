"""Connections of commands to Nimbus, ZooKeeper and Pacemakers, and the output.

A cluster that does not answer ends a command with an error line and an exit code. Clients are
imported on connection, so that ``--help`` stays quick.
"""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stormkeeper.cli.options import (
    ConfigFault,
    Fault,
    UnansweredFault,
    exit_with,
    faults,
    load_conf,
)
from stormkeeper.cli.output import Progress, ago, print_json, time_left
from stormkeeper.errors import (
    AccessDeniedError,
    ConfigError,
    PacemakerUnavailableError,
    StateAuthenticationError,
    StateUnavailableError,
    StormkeeperError,
)
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.client.nimbus_connection import NimbusConnection
    from stormkeeper.client.topology_commands import ComponentError, Wait, WaitStatus
    from stormkeeper.conf import Address, Conf
    from stormkeeper.pacemaker.client.pool import PacemakerPool
    from stormkeeper.state.storage import ClusterState
    from stormkeeper.thrift.pacemaker import ServerInfo

F = TypeVar("F", bound=Callable[..., Any])

#: Retries of a Pacemaker; the user can run the command again.
PACEMAKER_RETRIES: Final = 2

_KEYS_GO: Final = "keys are set with -c KEY=VALUE or in storm.yaml"
_ANOTHER: Final = "or name another with -c pacemaker.servers=HOST:PORT"
_SEE_LOG: Final = "check its machine and its log"

#: Remedies for Pacemakers, by a pattern in the error.
_REMEDIES: Final = {
    r"nothing listens there": "start one with `storm pacemaker`",
    r"could not be looked up": "check how pacemaker.servers writes the host",
    r"this is HTTP": "give its pacemaker.port",
    r"no (answer|connection) within|did not answer (before|within)": "the Pacemaker or the network"
    " hangs: check its machine and its log",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class NotYetFault(Fault):
    """Ends the command: Nimbus has accepted the request, and the effect is missing."""

    exit_code = 4


def waiting_options(default: str) -> Callable[[F], F]:
    """Add ``--no-wait``, ``--timeout`` and ``--json``."""

    def decorate(command: F) -> F:
        for option in (
            json_option,
            click.option(
                "--timeout",
                metavar="SECS",
                type=click.FloatRange(min=0, min_open=True),
                help=f"Longest wait for the effect; by default {default}.",
            ),
            click.option("--no-wait", is_flag=True, help="End as soon as Nimbus has accepted it."),
        ):
            command = option(command)
        return command

    return decorate


@contextmanager
def connected(conf: Conf | None = None) -> Iterator[NimbusConnection]:
    """Yield a connection to the leading Nimbus of `conf`, by default the command's."""
    conf = load_conf() if conf is None else conf
    from stormkeeper.client.nimbus_connection import connect

    with faults(), Progress() as finding, connect(conf, say=finding.say) as connection:
        finding.wipe()
        yield connection


def wait_for(
    progress: Progress,
    name: str,
    secs: float,
    until: Callable[[Wait], WaitStatus],
    *,
    remark: str,
    wait_secs: float = 0.0,
) -> WaitStatus | None:
    """Wait with `until` for up to `secs`, 0 for not at all, and show the progress.

    `wait_secs` is the known part of the wait. On Ctrl-C, print `remark` and end the command.
    """
    if not secs:
        return None
    from stormkeeper.client.topology_commands import Wait

    def say(text: str, passed: float) -> None:
        progress.say(f"{name}: {text}", time_left(wait_secs, passed))

    def tell(error: ComponentError) -> None:
        when = ago(time.time() - error.time_secs)
        progress.remark(f"{name}: error of {error.component}, {when}: {error.line}")

    try:
        return until(Wait(secs, say, tell=tell))
    except KeyboardInterrupt:
        progress.remark(remark)
        exit_with(128 + signal.SIGINT)


def end(
    name: str, status: WaitStatus | None, secs: float, *, as_json: bool = False, **values: Any
) -> None:
    """Print the status after a wait of `secs`, if any; end the command if the effect is missing.

    With `as_json`, first print the name, the `values` and the status.
    """
    if as_json:
        print_json({"name": name, **values, **status_values(status)})
    if status is None:
        return
    if status.has_failed:
        text = "\n".join(printable(line) for line in status.text.splitlines())
        raise NotYetFault(
            f"{name}: {text}\n\n{name} stays submitted, and its supervisor starts it again, unless"
            f" topology.restart is never. `storm logs {name}` shows its output, and"
            f" `storm kill {name}` ends it"
        )
    if not status.is_done:
        raise NotYetFault(
            f"{name}: after {secs:.0f} s, {status.text}. Nimbus has accepted the command, and"
            f" continues: see `storm status {name}`, or wait longer with --timeout"
        )
    text = printable(status.text, keep="\n")
    click.echo(f"storm: {name}: {text}", err=True)


def status_values(status: WaitStatus | None) -> dict[str, Any]:
    """Return the fields of a wait's result for `--json`."""
    if status is None:
        return {"done": False, "text": "Nimbus has accepted it; the command did not wait"}
    return {"done": status.is_done, "text": status.text}


@contextmanager
def open_state(conf: Conf) -> Iterator[ClusterState]:
    """Yield a read-only store; exit code 3 if ZooKeeper does not answer, or refuses."""
    from stormkeeper.state import backends

    silence_logs()
    with faults():
        try:
            # Says why a wait takes so long; the command's errors say the rest.
            with warnings_of("stormkeeper.state.zookeeper.kazoo_client"):
                store = backends.connect(conf, read_only=True)
            try:
                # This session's server may lag behind the server that the user wrote to.
                store.sync_path("/")
                yield store
            finally:
                store.close()
        except (StateUnavailableError, StateAuthenticationError, AccessDeniedError) as error:
            raise UnansweredFault(str(error)) from error


def check_pacemakers(conf: Conf) -> None:
    """End the command with exit code 2 if no Pacemaker is configured."""
    with faults():
        if not conf.pacemaker_servers():
            raise ConfigFault(
                "no Pacemaker is configured; name one with -c pacemaker.servers=HOST:PORT"
            )


@contextmanager
def open_pool(conf: Conf, *, warns: bool = True) -> Iterator[PacemakerPool]:
    """Yield a pool of the configured Pacemakers, with the faults of `pool_faults`.

    With `warns`, stderr names a Pacemaker that does not answer.
    """
    check_pacemakers(conf)
    from stormkeeper.pacemaker.client import pool

    with (
        pool_faults(),
        warnings_of(pool.__name__) if warns else nullcontext(),
        pool.connect(conf, name="storm-heartbeats", retries=PACEMAKER_RETRIES) as opened,
    ):
        yield opened


@contextmanager
def pool_faults() -> Iterator[None]:
    """End the command with exit code 3 and a remedy if no Pacemaker answered; print no logs."""
    silence_logs()
    try:
        yield
    except ConfigError as error:
        raise ConfigFault(str(error)) from error
    except StormkeeperError as error:
        raise UnansweredFault("; ".join([str(error), *_remedies(error)])) from error


def _remedies(error: StormkeeperError) -> list[str]:
    if re.search(r"pacemaker\.(auth|tls)\.", str(error)):
        return [_KEYS_GO]
    if not isinstance(error, PacemakerUnavailableError):
        return []
    found = [remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, str(error))]
    return [*(found or [_SEE_LOG]), _ANOTHER]


def horizon_text(server: Address, info: ServerInfo) -> str:
    """Return how long a Pacemaker has received heartbeats."""
    return f"{server} has received heartbeats for only {info.horizon_ms / 1000:.1f} s"


def silence_logs() -> None:
    """Print no log of clients: the command's own lines suffice."""
    logging.getLogger("stormkeeper").addHandler(logging.NullHandler())


@contextmanager
def warnings_of(name: str) -> Iterator[None]:
    """Print the warnings of a logger, as lines of the command."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("storm: warning: %(message)s"))
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
