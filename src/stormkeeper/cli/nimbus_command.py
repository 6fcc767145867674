"""Parts of commands that call Nimbus: the connection, the options to wait, and the result."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stormkeeper.cli.options import Fault, conf_options, exit_with, faults, load_conf
from stormkeeper.cli.output import Progress, duration, time_left
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.client.nimbus_connection import NimbusConnection
    from stormkeeper.client.wait import ComponentError, Wait, WaitStatus
    from stormkeeper.conf import Conf

F = TypeVar("F", bound=Callable[..., Any])

#: Exit code of a command that Nimbus accepted, and whose effect did not come in time.
NOT_YET: Final = 4

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class NotYetFault(Fault):
    """Ends the command with an error line: accepted by Nimbus, without the effect."""

    exit_code = NOT_YET


def waiting_options(default: str) -> Callable[[F], F]:
    """Return a decorator that adds ``--no-wait``, ``--timeout`` and ``--json``."""

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
            conf_options,
        ):
            command = option(command)
        return command

    return decorate


@contextmanager
def connected(conf: Conf | None = None) -> Iterator[NimbusConnection]:
    """Yield a connection to the leading Nimbus of `conf`, by default of the command's."""
    conf = load_conf() if conf is None else conf
    from stormkeeper.client.nimbus_connection import connect

    with faults(), Progress() as finding, connect(conf, say=finding.say) as connection:
        finding.wipe()
        yield connection


def waiting(progress: Progress, what: str, secs: float, wait_secs: float = 0.0) -> Wait:
    """Return a `Wait` of up to `secs` that prints progress after the prefix `what`.

    `wait_secs` is the known length of the wait, if any.
    """
    from stormkeeper.client.wait import Wait

    def say(text: str, passed: float) -> None:
        progress.say(f"{what}: {text}", time_left(wait_secs, passed))

    def tell(error: ComponentError) -> None:
        ago = duration(max(0, int(time.time() - error.time_secs)))
        progress.remark(f"{what}: error of {error.component}, {ago} ago: {error.line}")

    return Wait(secs, say, tell=tell)


@contextmanager
def interrupted_with(progress: Progress, remark: str) -> Iterator[None]:
    """Print a remark on Ctrl-C, and end with the exit code of every interrupted command."""
    try:
        yield
    except KeyboardInterrupt:
        progress.remark(remark)
        exit_with(128 + signal.SIGINT)


def end(name: str, status: WaitStatus | None, secs: float) -> None:
    """Print the last status of a topology, or end the command if the effect is missing.

    `status` None: the command did not wait; else it waited up to `secs`.
    """
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
    """Return the last status for JSON; None: the command did not wait."""
    if status is None:
        return {"done": False, "text": "Nimbus has accepted it; the command did not wait"}
    return {"done": status.is_done, "text": status.text}


def print_json(**values: Any) -> None:
    """Print a JSON object."""
    click.echo(json.dumps(values))
