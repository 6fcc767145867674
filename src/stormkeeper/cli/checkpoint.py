"""``storm checkpoint``: finds and repairs broken files in checkpoints on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from stormkeeper.cli.connections import connected, json_option
from stormkeeper.cli.options import Fault, command, conf_options, exit_with, faults, load_conf
from stormkeeper.cli.output import print_json

if TYPE_CHECKING:
    from stormkeeper.client.nimbus_connection import NimbusConnection
    from stormkeeper.conf import Conf
    from stormkeeper.topology.checkpoint_files import Defect

_DIR, _FROM = "topology.checkpoint.dir", "topology.checkpoint.from"

#: Statuses of topologies whose queries do not run.
_IDLE = frozenset({"INACTIVE", "COMPLETED"})

_offline = click.option("--offline", is_flag=True, help="Do not ask Nimbus whether a worker runs.")


@conf_options
@click.group()
def checkpoint() -> None:
    """Find and repair broken files in checkpoints on this machine.

    A power cut or a full disk may leave the newest file of a checkpoint empty or cut off. Spark
    then refuses to start the query.
    """


@command("storm checkpoint check nightly-counts", group=checkpoint)
@click.argument("name", metavar="NAME|DIR")
@_offline
@json_option
def check(name: str, offline: bool, as_json: bool) -> None:
    """Report faults in the checkpoints of topology NAME or in folder DIR, and a repair's losses.

    If NAME is gone, its last checkpoints on this machine are checked. Nothing is changed.

    Exit code 1: there is a fault, or no such checkpoint on this machine.
    """
    folder, _ = _find(name, offline=offline)
    found = _check(folder)
    if as_json:
        print_json(_as_values(found))
    else:
        _say(found)
    if any(found.values()):
        exit_with(1)


@command(
    "storm checkpoint repair nightly-counts",
    "storm checkpoint repair nightly-counts --yes",
    group=checkpoint,
)
@click.argument("name", metavar="NAME|DIR")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_offline
def repair(name: str, yes: bool, offline: bool) -> None:
    """Repair the checkpoints of topology NAME, or in folder DIR, after a question.

    The command first says what is lost. The topology must be killed or deactivated. Broken files
    are moved to the folder `mended` in the checkpoint.

    Exit code 1: a fault cannot be repaired, you said no, a worker may run, or there is no such
    checkpoint on this machine.
    """
    from stormkeeper.topology import checkpoint_files

    folder, running = _find(name, offline=offline)
    if running:
        raise Fault(
            f"a worker may run on {folder}: {running}. End its queries with `storm deactivate` or"
            " `storm kill`, wait until its batch has ended, and try again"
        )
    found = _check(folder)
    _say(found)
    mendable = {
        place: [defect for defect in defects if defect.is_mendable]
        for place, defects in found.items()
    }
    if any(mendable.values()):
        if not yes:
            click.confirm("Repair them, with the losses above?", abort=True)
        for place, defects in mendable.items():
            try:
                checkpoint_files.mend(place, defects)
            except OSError as error:
                raise Fault(f"{place} is not repaired: {error}") from error
            if defects:
                click.echo(f"{place}: repaired; the broken files are in {place}/mended")
    if any(_check(folder).values()):
        exit_with(1)


def _check(folder: Path) -> dict[Path, list[Defect]]:
    from stormkeeper.topology import checkpoint_files

    try:
        places = checkpoint_files.checkpoints(folder)
        if not places:
            raise Fault(f"there is no checkpoint in {folder}")
        return {place: checkpoint_files.check(place) for place in places}
    except OSError as error:
        raise Fault(f"{folder} cannot be read: {error}") from error


def _say(found: dict[Path, list[Defect]]) -> None:
    for place, defects in found.items():
        if not defects:
            click.echo(f"{place}: no faults")
        for defect in defects:
            click.echo(f"{place}: {defect.text}")
            click.echo(f"  a repair loses: {defect.lost or '(it cannot be repaired)'}")


def _as_values(found: dict[Path, list[Defect]]) -> list[dict[str, Any]]:
    return [
        {
            "checkpoint": str(place),
            "defects": [
                {"text": each.text, "lost": each.lost, "mendable": each.is_mendable}
                for each in defects
            ],
        }
        for place, defects in found.items()
    ]


def _find(name: str, *, offline: bool) -> tuple[Path, str]:
    """Return a folder of checkpoints, and the topologies with access."""
    conf = load_conf(unknown="keep")
    place = Path(name)
    is_folder = "/" in name or place.is_dir()
    if offline:
        return (place if is_folder else _last(conf, name)), ""
    with connected(conf) as connection:
        users = _users(connection)
        found = next((user for user in users if name in (user.name, user.storm_id)), None)
        if is_folder:
            folder = place
        elif found is None:
            folder = _last(conf, name)
        else:
            own = conf.with_values({_DIR: found.root}) if found.root else conf
            folder = _root(own) / found.folder
    if not folder.is_dir():
        raise Fault(
            f"there is no {folder} on this machine: run this where the query's worker runs or ran"
            f" (`storm status {name}`), or name the folder"
        )
    names = {*folder.resolve().parts, *_claimed_by(folder)}
    running = [
        f"{user.name} is {user.status}"
        for user in users
        if user.status not in _IDLE and names & {user.folder, user.storm_id}
    ]
    return folder, ", ".join(running)


class _User(NamedTuple):
    """A topology, and the folder of checkpoints below a root."""

    name: str
    storm_id: str
    status: str
    folder: str
    root: str | None


def _users(connection: NimbusConnection) -> list[_User]:
    from stormkeeper.client.topology_view import shown_status

    found = []
    for each in connection.nimbus.getTopologySummaries():
        saved = json.loads(connection.nimbus.getTopologyConf(each.id))
        folder = saved.get(_FROM) or each.id
        status = shown_status(each.status, each.sched_status)
        found.append(_User(each.name, each.id, status, folder, saved.get(_DIR)))
    return found


def _claimed_by(folder: Path) -> set[str]:
    """Return the topologies of the claims in a folder's checkpoints."""
    found = set()
    for claim in folder.rglob("claims/*"):
        try:
            found.add(json.loads(claim.read_bytes())["topology"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _root(conf: Conf) -> Path:
    from stormkeeper.conf.folders import checkpoint_root, on_disk

    with faults():
        named = checkpoint_root(conf)
        root = on_disk(named)
    if root is None:
        raise Fault(
            f"the checkpoints in {named} are not on a disk: copy the folder here, and name it"
        )
    return root


def _last(conf: Conf, name: str) -> Path:
    """Return the folder of the last topology with a name, or of an id."""
    root = _root(conf)
    if (root / name).is_dir():
        return root / name
    form = re.compile(rf"{re.escape(name)}-(\d+)-(\d+)")
    found = [
        (int(numbers[2]), int(numbers[1]), place)
        for place in root.glob("*")
        if (numbers := form.fullmatch(place.name))
    ]
    if not found:
        raise Fault(
            f"there is no checkpoint of {name} in {root} on this machine: run this where the"
            " query's worker ran, or name the folder"
        )
    return max(found)[2]
