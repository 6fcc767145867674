"""The options of commands that wait for an effect, and how such a command ends."""

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

#: Exit code of a command that was carried out, and whose effect was not there in time.
NOT_YET: Final = 4

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class NotYetFault(Fault):
    """Ends the command with one line on stderr: Nimbus has taken it, its effect is not there."""

    exit_code = NOT_YET


def waiting_options(default: str) -> Callable[[F], F]:
    """Return what gives a command ``--no-wait``, ``--timeout`` and ``--json``.

    Parameters
    ----------
    default
        How long it waits where nobody says, in words.
    """

    def decorate(command: F) -> F:
        for option in (
            json_option,
            click.option(
                "--timeout",
                metavar="SECS",
                type=click.FloatRange(min=0, min_open=True),
                help=f"Wait so long for the effect at most; by default {default}.",
            ),
            click.option("--no-wait", is_flag=True, help="End as soon as Nimbus has taken it."),
            conf_options,
        ):
            command = option(command)
        return command

    return decorate


@contextmanager
def connected(conf: Conf | None = None) -> Iterator[NimbusConnection]:
    """Give a connection to the leading Nimbus of a configuration; the command's, if left out."""
    conf = load_conf() if conf is None else conf
    from stormkeeper.client.nimbus_connection import connect

    with faults(), Progress() as finding, connect(conf, say=finding.say) as connection:
        finding.wipe()
        yield connection


def waiting(progress: Progress, what: str, secs: float, wait_secs: float = 0.0) -> Wait:
    """Return how an effect is waited for.

    Parameters
    ----------
    progress
        Shows it.
    what
        Stands before what is waited for.
    secs
        How long at most.
    wait_secs
        How long it will take, if that is known.
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
    """Say on Ctrl-C how things stand, and end as every command does then."""
    try:
        yield
    except KeyboardInterrupt:
        progress.remark(remark)
        exit_with(128 + signal.SIGINT)


def end(name: str, seen: WaitStatus | None, secs: float) -> None:
    """Say what is there now; end the command where that is not the effect.

    Parameters
    ----------
    name
        The topology.
    seen
        What was there last; None: nobody has looked.
    secs
        How long the effect was waited for.
    """
    if seen is None:
        return
    if seen.has_failed:
        text = "\n".join(printable(line) for line in seen.text.splitlines())
        raise NotYetFault(
            f"{name}: {text}\n\n{name} stays submitted, and its supervisor starts it again, if"
            f" topology.restart is not never. `storm logs {name}` shows what it has written, and"
            f" `storm kill {name}` ends it"
        )
    if not seen.is_done:
        raise NotYetFault(
            f"{name}: after {secs:.0f} s, {seen.text}. Nimbus has taken the command, and goes on:"
            f" see `storm status {name}`, or wait longer with --timeout"
        )
    text = printable(seen.text, keep="\n")
    click.echo(f"storm: {name}: {text}", err=True)


def as_values(seen: WaitStatus | None) -> dict[str, Any]:
    """Return what was seen last for a JSON object; where nobody has looked, that says so."""
    if seen is None:
        return {"done": False, "text": "Nimbus has taken it, and its effect was not waited for"}
    return {"done": seen.is_done, "text": seen.text}


def print_json(**values: Any) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(values))
