"""What a Pacemaker holds at most, and which paths a pulse may have.

Each limit is there so that no client can take what the others need. A request that exceeds one is
refused, and what is stored stays.
"""

import os
import re
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from stormkeeper.errors import NotAuthorizedError

#: Deleted paths that are remembered: twice the workers of the largest clusters we know of.
MAX_TOMBSTONES: Final = 16_384
#: Bytes of the paths in all tombstones, should somebody delete very long paths.
MAX_TOMBSTONE_BYTES: Final = 4_194_304
#: Seconds for which deletions are remembered: a reader that was away for longer reads anew.
TOMBSTONE_SECONDS: Final = 3_600.0

#: C0, DEL, and C1 as UTF-8: nothing that a terminal or a log would act upon.
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
#: How much of a path is shown when it is refused.
_SHOWN: Final = 200


class LimitError(NotAuthorizedError):
    """What was asked for exceeds a limit; `cause` is a short word for metrics."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What one store holds; sizes in bytes.

    For `store_bytes`, which are those of pulses and their paths, and for `index_bytes`, which are
    those that it takes to find them, 0 is no limit.
    """

    store_bytes: int = 0
    index_bytes: int = 0
    path_bytes: int = 1_024
    path_segments: int = 16
    tombstones: int = MAX_TOMBSTONES
    tombstone_bytes: int = MAX_TOMBSTONE_BYTES
    tombstone_seconds: float = TOMBSTONE_SECONDS

    @classmethod
    def of(cls, conf: Mapping[str, Any]) -> Self:
        """Take the limits from the configuration.

        ``pacemaker.store.max.bytes`` (null: half of the memory that this process may have),
        ``pacemaker.path.max.bytes`` and ``pacemaker.path.max.segments`` are read. Unless the first
        is 0, index and directories may take a quarter of the memory: many pulses of few bytes
        would otherwise take a hundred times of what is stored.
        """
        store_bytes, memory = conf["pacemaker.store.max.bytes"], memory_allowed()
        return cls(
            store_bytes=memory // 2 if store_bytes is None else store_bytes,
            index_bytes=0 if store_bytes == 0 else memory // 4,
            path_bytes=conf["pacemaker.path.max.bytes"],
            path_segments=conf["pacemaker.path.max.segments"],
        )

    def check_size(self, path: bytes) -> None:
        """Raise `LimitError` if `path` is too long, or has too many segments.

        The empty one before a leading slash is not counted.
        """
        if len(path) > self.path_bytes:
            raise LimitError(
                "path",
                f"a path of {len(path)} bytes, more than the {self.path_bytes} of"
                f" pacemaker.path.max.bytes: {shown(path)}",
            )
        segments = path.count(b"/") + (not path.startswith(b"/"))
        if segments > self.path_segments:
            raise LimitError(
                "path",
                f"a path of {segments} segments, more than the {self.path_segments} of"
                f" pacemaker.path.max.segments: {shown(path)}",
            )

    def check_text(self, path: bytes) -> None:
        """Raise `LimitError` if `path` is not UTF-8, or has control characters."""
        try:
            path.decode()
        except UnicodeDecodeError as error:
            raise LimitError(
                "path", f"a path that is not UTF-8: {shown(path)}: {error.reason}"
            ) from error
        control = _CONTROL.search(path)
        if control is not None:
            raise LimitError(
                "path",
                f"a path with the control character {control.group().decode()!r}: {shown(path)}",
            )


def memory_allowed(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes of memory this process may have.

    That is the machine's memory, or what the process's control groups (version 2 or 1) or its
    limit of address space leave of it.

    Parameters
    ----------
    proc, cgroups
        Where the system tells of processes and control groups.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [machine, *_group_limits(proc, cgroups)]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def _group_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Read the memory limits of this process's control groups and of those above them."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = root / group.strip("/")
        for folder in (place, *place.parents):
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                text = ""
            if text.isdecimal():
                yield int(text)
            if folder == root:
                break


def shown(path: bytes) -> str:
    """Return the beginning of a path as the log quotes it: without control characters."""
    return repr(path[:_SHOWN])[1:]
