"""``storm heartbeats``: show the heartbeats that Pacemakers hold."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from stormkeeper.cli.connections import check_pacemakers, horizon_text, open_pool, pool_faults
from stormkeeper.cli.options import (
    Fault,
    UnansweredFault,
    as_path,
    command,
    command_group,
    exit_with,
    load_conf,
    watch_option,
)
from stormkeeper.cli.output import note, print_json
from stormkeeper.errors import SerializationError, StormkeeperError

if TYPE_CHECKING:
    from stormkeeper.conf import Address
    from stormkeeper.heartbeats.stores import Heartbeat
    from stormkeeper.pacemaker.client.pool import PacemakerPool

#: In every cluster, even without heartbeats.
_ALWAYS_THERE: Final = frozenset({"/", "/workerbeats"})

#: Bytes of an undecodable value in a line.
_HEX_WIDTH: Final = 32


@command_group(
    "storm heartbeats list /workerbeats -c pacemaker.servers=localhost:6699",
    "storm heartbeats get /workerbeats/word-count-1-1700000000/node-6700",
    "storm heartbeats list / -c pacemaker.auth.method=DIGEST"
    " -c java.security.auth.login.config=jaas.conf",
)
def heartbeats() -> None:
    """Show the heartbeats that Pacemakers hold.

    The commands read the Pacemakers of pacemaker.servers. For authentication, set
    pacemaker.auth.method and java.security.auth.login.config; for TLS, pacemaker.tls.enable and
    pacemaker.tls.ca.file.
    """


@command(
    "storm heartbeats list /",
    "storm heartbeats list /workerbeats -c 'pacemaker.servers=[a, b:7000]'",
    "storm heartbeats list /workerbeats/word-count-1-1700000000 --json",
    "storm heartbeats list /workerbeats --watch",
    name="list",
    group=heartbeats,
)
@click.argument("path", callback=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list (a heartbeat: an object).")
@watch_option
def list_below(path: str, as_json: bool, is_watched: bool) -> None:
    """List the names directly below PATH, one a line.

    PATH is /, or /workerbeats/STORM-ID/NODE-PORT or the beginning of it; the first slash is
    optional. If PATH is a heartbeat, this prints it, as `get` does.

    --watch reads the names every two seconds, and prints a line with the time for each that comes
    (+) or goes (-), with --json the whole list, until Ctrl-C. A name does not count as gone while a
    Pacemaker does not answer, or has started less than nimbus.task.timeout.secs ago.

    If nothing is found, stderr names such new Pacemakers: workers may not have sent a heartbeat to
    them yet.

    Exit code 0: all Pacemakers answered; / and /workerbeats may still be empty. 1: nothing is at
    PATH. 2: wrong usage or configuration. 3: a Pacemaker did not answer or refused, so the output
    may be incomplete; stderr names it.
    """
    conf = load_conf()
    timeout_secs = conf["nimbus.task.timeout.secs"]
    if is_watched:
        from stormkeeper.cli import watches

        # `watches` prints the pool's warnings.
        with suppress(KeyboardInterrupt), open_pool(conf, warns=False) as pool:
            watches.print_pulse_names(pool, path, as_json=as_json, timeout_secs=timeout_secs)
        return
    with open_pool(conf) as pool:
        names = sorted(pool.children(path))
        silent = pool.silent
        reading = None if names else pool.reading(path)
        silent |= pool.silent
        if not (names or reading or silent):
            _print_new_servers(pool, timeout_secs)
    if names:
        click.echo(json.dumps(names) if as_json else "\n".join(names))
    elif reading is not None:
        click.echo(_shown(reading, as_json=as_json))
    elif path in _ALWAYS_THERE and not silent:
        note("all Pacemakers answered, and hold no heartbeat")
        if as_json:
            click.echo("[]")
    else:
        raise _nothing(f"nothing at {path}", silent)
    exit_with(UnansweredFault.exit_code if silent else 0)


@command(
    "storm heartbeats get /workerbeats/word-count-1-1700000000/node-6700",
    "storm heartbeats get /workerbeats/word-count-1-1700000000/node-6700 --json",
    "storm heartbeats get /.stormkeeper",
    group=heartbeats,
)
@click.argument("path", callback=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def get(path: str, as_json: bool) -> None:
    """Print the heartbeat at PATH: storm-id, statistics by executor and window, uptime.

    PATH is /workerbeats/STORM-ID/NODE-PORT; the first slash is optional. /.stormkeeper prints the
    version and extensions of each Pacemaker.

    In the output, server is the Pacemaker that holds the heartbeat; age-secs is the time since it
    arrived there, which Storm's own Pacemaker does not report; time-secs is the worker's clock. A
    value that is not a heartbeat is printed in hexadecimal. If nothing is found, stderr names each
    Pacemaker that has started less than nimbus.task.timeout.secs ago: workers may not have sent a
    heartbeat to it yet.

    Exit code 1: all Pacemakers answered, and hold no heartbeat at PATH. 2: wrong usage or
    configuration. 3: a Pacemaker did not answer or refused, and may hold a newer heartbeat, or the
    only one; stderr names it.
    """
    if path == "/.stormkeeper":
        _print_servers(as_json=as_json)
        return
    conf = load_conf()
    with open_pool(conf) as pool:
        reading = pool.reading(path)
        silent = pool.silent
        below = reading is None and bool(pool.children(path))
        silent |= pool.silent
        if reading is None and not silent:
            _print_new_servers(pool, conf["nimbus.task.timeout.secs"])
    if reading is None:
        hint = f"; see `storm heartbeats list {path}`" if below else ""
        raise _nothing(f"no heartbeat at {path}", silent, hint)
    click.echo(_shown(reading, as_json=as_json))
    exit_with(UnansweredFault.exit_code if silent else 0)


@command(
    "storm heartbeats top",
    "storm heartbeats top --once --json",
    "storm heartbeats top --interval 5 -c 'pacemaker.servers=[a, b:7000]'",
    group=heartbeats,
)
@click.option("--once", is_flag=True, help="Read twice, print one table, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECS",
    help="Seconds between two reads. Only the last pulse of a worker between two reads is counted,"
    " so set it below the workers' heartbeat period.",
)
def top(once: bool, as_json: bool, interval: float) -> None:
    """Watch the heartbeats of all Pacemakers: rates, sizes, the oldest, the busiest topologies.

    Ctrl-C ends the command. Topologies with the most bytes come first. A worker is silent if its
    newest pulse, on any Pacemaker, is older than nimbus.task.timeout.secs, also if its queries have
    all ended by themselves; `storm heartbeats get` then prints `completed`.

    Exit code 3: the first read failed on all Pacemakers.
    """
    conf = load_conf()
    check_pacemakers(conf)
    from stormkeeper.cli import heartbeats_top

    with suppress(KeyboardInterrupt), pool_faults():
        heartbeats_top.run(conf, interval=interval, once=once, as_json=as_json)


def _print_new_servers(pool: PacemakerPool, timeout_secs: float) -> None:
    """Name the Pacemakers to which some workers may not have sent a heartbeat yet."""
    from stormkeeper.heartbeats.coverage import unproven_on

    for server, info in unproven_on(pool.server_infos(), math.inf, timeout_secs).items():
        note(f"{horizon_text(server, info)}: workers may not have sent one yet")


def _nothing(what: str, silent: Collection[Address], hint: str = "") -> Fault:
    if not silent:
        return Fault(f"{what}{hint}")
    return UnansweredFault(f"{what} on the Pacemakers that answered{hint}")


def _print_servers(*, as_json: bool) -> None:
    from stormkeeper.pacemaker.client.pool import join_errors
    from stormkeeper.thrift import readable

    with open_pool(load_conf()) as pool:
        answers = pool.server_infos()
    failures = [answer for answer in answers.values() if isinstance(answer, StormkeeperError)]
    values: dict[str, dict[str, Any] | None] = {}
    for server, answer in answers.items():
        if isinstance(answer, StormkeeperError):
            values[str(server)] = {"error": str(answer)}
            continue
        info = None if answer is None else readable.to_builtins(answer)
        values[str(server)] = info
        if not as_json:
            click.echo(f"{server}:" if info else f"{server}: a Pacemaker without extensions")
            for name, value in (info or {}).items():
                click.echo(f"  {name}: {json.dumps(value) if isinstance(value, list) else value}")
    if as_json:
        print_json(values)
    if failures and len(failures) == len(answers):
        with pool_faults():
            raise join_errors(failures)
    for failure in failures:
        note(f"warning: {failure}")
    exit_with(UnansweredFault.exit_code if failures else 0)


def _shown(heartbeat: Heartbeat, *, as_json: bool) -> str:
    from stormkeeper.thrift import readable
    from stormkeeper.thrift.records import ClusterWorkerHeartbeat
    from stormkeeper.thrift.serialization import deserialize

    data, age = heartbeat.value, heartbeat.age_secs
    assert data is not None  # this command reads with values
    where: dict[str, Any] = {} if age is None else {"age_secs": round(age, 3)}
    where["server"] = heartbeat.server
    try:
        record = deserialize(ClusterWorkerHeartbeat, data)
    except SerializationError as error:
        old = "" if age is None else f"{age:.1f} s old, "
        note(f"not a heartbeat ({error}), {old}on {heartbeat.server}; shown in hexadecimal")
        if as_json:
            return json.dumps({"hex": data.hex(), **where})
        lines = (data[i : i + _HEX_WIDTH].hex() for i in range(0, len(data), _HEX_WIDTH))
        return "\n".join(lines)
    if as_json:
        return json.dumps({**readable.to_builtins(record), **where})
    also = [] if age is None else [("age-secs", f"{age:.1f}")]
    return readable.render(record, [*also, ("server", heartbeat.server)])
