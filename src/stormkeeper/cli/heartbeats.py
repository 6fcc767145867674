"""``storm heartbeats``: what workers last said, as the Pacemakers have it."""

import json
import logging
import math
import os
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from stormkeeper.cli.groups import Group
from stormkeeper.cli.options import (
    ConfigFault,
    Fault,
    UnansweredFault,
    conf_options,
    examples,
    exit_with,
    faults,
    load_conf,
    until_interrupted,
    watch_option,
)
from stormkeeper.errors import (
    ConfigError,
    PacemakerUnavailableError,
    SerializationError,
    StormkeeperError,
)
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.conf import Address, Conf
    from stormkeeper.heartbeats.protocols import Heartbeat
    from stormkeeper.pacemaker.client.pool import PacemakerPool

#: Tries after the first: a person waits, and can ask again.
_RETRIES = 2

_NO_SERVER = "no Pacemaker is configured; name one with -c pacemaker.servers=HOST:PORT"
_KEYS_GO = "keys are set with -c KEY=VALUE or in storm.yaml"
_ANOTHER = "or name another with -c pacemaker.servers=HOST:PORT"

#: What may help, by what the error says.
_REMEDIES = {
    r"nothing listens there": "start one with `storm pacemaker`",
    r"could not be looked up": "see how the host is written in pacemaker.servers",
    r"this is HTTP": "give its pacemaker.port",
    r"no (answer|connection) within|did not answer (before|within)": "it hangs, or what is between"
    " does: see its machine and its log",
}
_SEE_LOG = "see its machine and its log"

#: What every cluster has, be it empty.
_ALWAYS_THERE = frozenset({"/", "/workerbeats"})

#: Bytes of an undecodable value that one line shows.
_HEX_WIDTH = 32


class _BadPath(Fault):
    """Ends the command: the argument is no path."""

    exit_code = 2


def _checked(_: click.Context, __: click.Parameter, path: str) -> str:
    """Return a path as Pacemaker writes it, if it can be one."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _BadPath(f"PATH is not UTF-8: {os.fsencode(path)!r}") from None
    if any(unicodedata.category(char) == "Cc" for char in path):
        raise _BadPath(f"PATH has a control character, as no path may: {path!a}")
    return normal(path)


@click.group(
    cls=Group,
    epilog=examples(
        "storm heartbeats list /workerbeats -c pacemaker.servers=localhost:6699",
        "storm heartbeats get /workerbeats/word-count-1-1700000000/node-6700",
        "storm heartbeats list / -c pacemaker.auth.method=DIGEST"
        " -c java.security.auth.login.config=jaas.conf",
    ),
)
@conf_options
def heartbeats() -> None:
    """Look at the heartbeats that the Pacemakers hold.

    It asks the Pacemakers of pacemaker.servers. If they want authentication, set
    pacemaker.auth.method and java.security.auth.login.config as they have them. If they have TLS,
    set pacemaker.tls.enable and pacemaker.tls.ca.file.
    """


@heartbeats.command(
    "list",
    epilog=examples(
        "storm heartbeats list /",
        "storm heartbeats list /workerbeats -c 'pacemaker.servers=[a, b:7000]'",
        "storm heartbeats list /workerbeats/word-count-1-1700000000 --json",
        "storm heartbeats list /workerbeats --watch",
    ),
)
@click.argument("path", callback=_checked)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list (a heartbeat: an object).")
@watch_option
@conf_options
def list_below(path: str, as_json: bool, is_watched: bool) -> None:
    """List what lies directly below PATH, one name a line.

    PATH is /, or /workerbeats/STORM-ID/NODE-PORT or the beginning of it; the first slash is
    optional. If PATH is a heartbeat, this prints it, as `get` does.

    --watch reads the names every two seconds, and prints a line with the time for each that comes
    (+) or goes (-); with --json it prints the whole list after each change. It does not report a
    name as gone while a Pacemaker does not answer, nor until one that has started again has taken
    heartbeats for nimbus.task.timeout.secs. Ctrl-C ends it.

    If nothing is found, stderr names each Pacemaker that has taken heartbeats for less than that:
    its workers may not have beaten yet.

    Exit code 0: all Pacemakers answered; / and /workerbeats may still be empty. 1: nothing is at
    PATH. 2: wrong usage or configuration. 3: one or more Pacemakers did not answer or refused, so
    the output may be incomplete; stderr names them.
    """
    conf = load_conf()
    timeout_secs = conf["nimbus.task.timeout.secs"]
    if is_watched:
        with until_interrupted(), _asking(conf, is_watched=True) as pool:
            from stormkeeper.cli import following

            following.follow(pool, path, as_json=as_json, timeout_secs=timeout_secs)
        return
    with _asking(conf) as pool:
        names = sorted(pool.children(path))
        silent = pool.silent
        reading = None if names else pool.reading(path)
        silent |= pool.silent
        if not (names or reading or silent):
            _tell_who_is_new(pool, timeout_secs)
    if names:
        click.echo(json.dumps(names) if as_json else "\n".join(names))
    elif reading is not None:
        click.echo(_shown(reading, as_json=as_json))
    elif path in _ALWAYS_THERE and not silent:
        click.echo("storm: every Pacemaker answered, and none holds a heartbeat", err=True)
        if as_json:
            click.echo("[]")
    else:
        raise _nothing(f"nothing at {path}", silent)
    exit_with(UnansweredFault.exit_code if silent else 0)


@heartbeats.command(
    epilog=examples(
        "storm heartbeats get /workerbeats/word-count-1-1700000000/node-6700",
        "storm heartbeats get /workerbeats/word-count-1-1700000000/node-6700 --json",
        "storm heartbeats get /.stormkeeper",
    ),
)
@click.argument("path", callback=_checked)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@conf_options
def get(path: str, as_json: bool) -> None:
    """Print the heartbeat at PATH: storm-id, statistics by executor and window, uptime.

    PATH is /workerbeats/STORM-ID/NODE-PORT; the first slash is optional. /.stormkeeper says what
    each Pacemaker is and can do.

    server is the Pacemaker that has it. age-secs is the time since it came there, on that
    Pacemaker's clock; Storm's own Pacemaker does not report it. time-secs is the worker's clock. A
    value that is no heartbeat is printed in hexadecimal. If nothing is found, stderr names each
    Pacemaker that has taken heartbeats for less than nimbus.task.timeout.secs: its workers may not
    have beaten yet.

    Exit code 1: all Pacemakers answered, and no heartbeat is there. 2: wrong usage or
    configuration. 3: one or more Pacemakers did not answer or refused, and may hold a newer
    heartbeat, or the only one; stderr names them.
    """
    if path == "/.stormkeeper":
        _print_servers(as_json=as_json)
        return
    conf = load_conf()
    with _asking(conf) as pool:
        reading = pool.reading(path)
        silent = pool.silent
        below = reading is None and bool(pool.children(path))
        silent |= pool.silent
        if reading is None and not silent:
            _tell_who_is_new(pool, conf["nimbus.task.timeout.secs"])
    if reading is None:
        hint = f"; see `storm heartbeats list {path}`" if below else ""
        raise _nothing(f"no heartbeat at {path}", silent, hint)
    click.echo(_shown(reading, as_json=as_json))
    exit_with(UnansweredFault.exit_code if silent else 0)


@heartbeats.command(
    epilog=examples(
        "storm heartbeats top",
        "storm heartbeats top --once --json",
        "storm heartbeats top --interval 5 -c 'pacemaker.servers=[a, b:7000]'",
    ),
)
@click.option("--once", is_flag=True, help="Look twice, print one picture, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECS",
    help="Time from one look to the next. A pulse that another one follows before the next look is"
    " not seen, so it should be shorter than the workers' heartbeat period.",
)
@conf_options
def top(once: bool, as_json: bool, interval: float) -> None:
    """Watch the heartbeats of all Pacemakers: rates, sizes, the oldest, the noisiest topologies.

    Ctrl-C ends it. Topologies with the most bytes come first. A worker is silent if its newest
    pulse, on any Pacemaker, is older than nimbus.task.timeout.secs. A worker whose queries have all
    ended by themselves looks silent too; `storm heartbeats get` prints `completed` for it.

    Exit code 3: at the first look no Pacemaker could be read.
    """
    conf = load_conf()
    with faults():
        servers = conf.pacemaker_servers()
    if not servers:
        raise ConfigFault(_NO_SERVER)
    from stormkeeper.cli.top import command

    # What the clients have to say is in the picture.
    logging.getLogger("stormkeeper").addHandler(logging.NullHandler())
    with until_interrupted(), _asked():
        command.run(conf, interval=interval, once=once, as_json=as_json)


def _tell_who_is_new(pool: "PacemakerPool", timeout_secs: float) -> None:
    """Name the Pacemakers that have run too briefly to know all workers."""
    from stormkeeper.cli.following import taking_for
    from stormkeeper.heartbeats.coverage import unproven_on

    for server, info in unproven_on(pool.server_infos(), math.inf, timeout_secs).items():
        click.echo(f"storm: {taking_for(server, info)}: workers may not have beaten yet", err=True)


def _nothing(what: str, silent: Collection["Address"], hint: str = "") -> Fault:
    """Return the error of a command that found nothing on the Pacemakers that answered."""
    if not silent:
        return Fault(f"{what}{hint}")
    return UnansweredFault(f"{what} on the Pacemakers that answered{hint}")


def normal(path: str) -> str:
    """Return a path as Pacemaker writes it: one slash before each part and none at the end."""
    return "/" + "/".join(part for part in path.split("/") if part)


@contextmanager
def _asking(conf: "Conf | None" = None, *, is_watched: bool = False) -> Iterator["PacemakerPool"]:
    conf = conf or load_conf()
    with faults():
        servers = conf.pacemaker_servers()
    if not servers:
        raise ConfigFault(_NO_SERVER)
    from stormkeeper.pacemaker.client.pool import connect

    _log_to_stderr(is_watched=is_watched)
    with _asked(), connect(conf, name="storm-heartbeats", retries=_RETRIES) as pool:
        yield pool


@contextmanager
def _asked() -> Iterator[None]:
    """End the command with exit code 3 if no Pacemaker answered, and say what may help."""
    try:
        yield
    except ConfigError as error:
        raise ConfigFault(str(error)) from error
    except StormkeeperError as error:
        raise UnansweredFault("; ".join([str(error), *_remedies(error)])) from error


def _remedies(error: StormkeeperError) -> list[str]:
    """Return what may help; if the error names a key, how to set it here."""
    if re.search(r"pacemaker\.(auth|tls)\.", str(error)):
        return [_KEYS_GO]
    if not isinstance(error, PacemakerUnavailableError):
        return []
    found = [remedy for said, remedy in _REMEDIES.items() if re.search(said, str(error))]
    return [*(found or [_SEE_LOG]), _ANOTHER]


def _log_to_stderr(*, is_watched: bool) -> None:
    """Show the pool's warnings, such as that a server did not answer; a command shows each once."""
    if not is_watched:  # who watches is told by `following`
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("storm: warning: %(message)s"))
        logging.getLogger("stormkeeper.pacemaker.client.pool").addHandler(handler)
    logging.getLogger("stormkeeper").addHandler(logging.NullHandler())


def _print_servers(*, as_json: bool) -> None:
    with _asking() as pool:
        answers = pool.server_infos()
    failures = [answer for answer in answers.values() if isinstance(answer, StormkeeperError)]
    if len(failures) == len(answers) and not as_json:
        _fail_together(failures)
    from stormkeeper.thrift import readable

    if len(failures) < len(answers):
        for failure in failures:
            click.echo(f"storm: warning: {printable(str(failure))}", err=True)
    told: dict[str, dict[str, Any] | None] = {}
    for server, answer in answers.items():
        if isinstance(answer, StormkeeperError):
            if as_json:
                told[str(server)] = {"error": str(answer)}
        else:
            told[str(server)] = None if answer is None else readable.to_builtins(answer)
    if as_json:
        click.echo(json.dumps(told))
        if len(failures) == len(answers):
            _fail_together(failures)
        exit_with(UnansweredFault.exit_code if failures else 0)
    for address, info in told.items():
        click.echo(f"{address}:" if info else f"{address}: a Pacemaker without extensions")
        for name, value in (info or {}).items():
            click.echo(f"  {name}: {json.dumps(value) if isinstance(value, list) else value}")
    exit_with(UnansweredFault.exit_code if failures else 0)


def _fail_together(failures: "Sequence[StormkeeperError]") -> NoReturn:
    """End the command, as no Pacemaker has told what it is."""
    from stormkeeper.pacemaker.client.pool import together

    with _asked():
        raise together(failures)


def _shown(heartbeat: "Heartbeat", *, as_json: bool) -> str:
    from stormkeeper.thrift import readable
    from stormkeeper.thrift.records import ClusterWorkerHeartbeat
    from stormkeeper.thrift.serialization import deserialize

    data, age = heartbeat.value, heartbeat.age_secs
    assert data is not None  # values were asked for
    where: dict[str, Any] = {} if age is None else {"age_secs": round(age, 3)}
    where["server"] = heartbeat.server
    try:
        record = deserialize(ClusterWorkerHeartbeat, data)
    except SerializationError as error:
        old = "" if age is None else f"{age:.1f} s old, "
        click.echo(
            f"storm: not a heartbeat ({error}), {old}on {heartbeat.server}; shown in hexadecimal",
            err=True,
        )
        if as_json:
            return json.dumps({"hex": data.hex(), **where})
        lines = (data[i : i + _HEX_WIDTH].hex() for i in range(0, len(data), _HEX_WIDTH))
        return "\n".join(lines)
    if as_json:
        return json.dumps({**readable.to_builtins(record), **where})
    also = [] if age is None else [("age-secs", f"{age:.1f}")]
    return readable.render(record, [*also, ("server", heartbeat.server)])
