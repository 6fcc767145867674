"""Memory limits by the kernel: a control group (cgroup v2) for each worker.

The kernel ends a worker over its limit at once, with all its children; the supervisor's own
measurements may come too late.

In cgroup v2 a group that delegates controllers can have no process, and systemd puts a restarted
service into its unit's group, which fails if workers are left below. So the supervisor's own group
must be `LEAF`, with the workers' beside it (``DelegateSubgroup=`` of systemd 254).
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

#: Name of the supervisor's own group, as in its systemd unit.
LEAF: Final = "supervisor"

_PREFIX: Final = "worker-"

#: A shell that joins a group before it becomes the worker, so that all its processes are inside.
_INTO_GROUP: Final = 'echo $$ > "$0" && exec "$@"'


class NoControlGroupsError(Exception):
    """Control groups cannot be used here, for the reason in the message."""


class ControlGroups:
    """The groups of a supervisor's workers, in the folder of the parent group `above`."""

    def __init__(self, above: Path) -> None:
        self.above = above

    @classmethod
    def here(cls, proc: Path = Path("/proc")) -> ControlGroups:
        """Return the groups beside this process's own group, which must be `LEAF`.

        Raises `NoControlGroupsError` without cgroup v2, or if this process may not create groups.
        """
        own = _own_group(proc / "self")
        if own.name != LEAF:
            raise NoControlGroupsError(
                f"the control group of this process is not named {LEAF!r}: run it by systemd 254 or"
                f" newer, with Delegate=yes and DelegateSubgroup={LEAF}"
            )
        above = own.parent
        try:
            if "memory" not in (above / "cgroup.controllers").read_text().split():
                raise NoControlGroupsError(f"{above} has no controller of memory")
            (above / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:
            raise NoControlGroupsError(f"{above} cannot be used: {error.strerror}") from error
        return cls(above)

    def make(self, worker_id: str, limit_bytes: int) -> None:
        """Create the group of a worker; raises `OSError`, without a group, if that fails."""
        group = self._group(worker_id)
        group.mkdir(exist_ok=True)
        try:
            _limit(group, limit_bytes)
        except OSError:
            self.remove(worker_id)
            raise

    def into(self, worker_id: str, argv: Sequence[str]) -> list[str]:
        """Return the command that starts a worker in the group."""
        return ["/bin/sh", "-c", _INTO_GROUP, str(self._group(worker_id) / "cgroup.procs"), *argv]

    def limit_again(self, worker_id: str, limit_bytes: int) -> None:
        """Set the limit of an adopted worker again, after a restart of the unit.

        A worker without a group stays without.
        """
        group = self._group(worker_id)
        if group.is_dir():
            try:
                _limit(group, limit_bytes)
            except OSError as error:
                log.warning("the kernel does not limit the worker %s: %s", worker_id, error)

    def is_exceeded(self, worker_id: str) -> bool:
        """Return whether the kernel has ended a process of a worker at the limit."""
        try:
            lines = (self._group(worker_id) / "memory.events").read_text().splitlines()
        except OSError:
            return False
        counts = dict(line.split(maxsplit=1) for line in lines)
        # Without the first, the machine or a parent group was out of memory.
        return all(counts.get(name, "0") != "0" for name in ("oom", "oom_kill"))

    def remove(self, worker_id: str) -> None:
        """Remove the group of a worker without processes."""
        _remove(self._group(worker_id))

    def remove_others(self, worker_ids: Collection[str]) -> None:
        """Remove the empty groups of all other workers."""
        kept = {self._group(worker_id) for worker_id in worker_ids}
        for group in self.above.glob(f"{_PREFIX}*"):
            if group not in kept:
                _remove(group)

    def _group(self, worker_id: str) -> Path:
        return self.above / f"{_PREFIX}{worker_id}"


def _own_group(process: Path) -> Path:
    try:
        groups = (process / "cgroup").read_text().splitlines()
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    except OSError as error:
        raise NoControlGroupsError(f"{process} does not tell its group: {error}") from error
    # Groups of cgroup v1 have other numbers.
    own = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    for mount in mounts:
        if own is None or mount[mount.index("-") + 1] != "cgroup2":
            continue
        root, place = mount[3], Path(mount[4])
        if Path(own).is_relative_to(root) and ".." not in Path(own).parts:
            return place / Path(own).relative_to(root)
    raise NoControlGroupsError("this machine has no cgroup v2, or does not show it here")


def _limit(group: Path, limit_bytes: int) -> None:
    # Swapped memory counts as well.
    for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
        if (group / name).exists():  # not every kernel has both
            (group / name).write_text(value)
    (group / "memory.max").write_text(str(limit_bytes))


def _remove(group: Path) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):
            group.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            log.warning("the control group %s cannot be removed: %s", group, error)
