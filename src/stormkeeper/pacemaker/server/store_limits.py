"""Limits of the pulse store: bytes held, lengths of paths, number of tombstones.

A request beyond a limit raises `LimitError`: the client gets NOT_AUTHORIZED and the store stays as
it is. `RequestHandler` and `PulseStore.put` check the limits; rules by client belong to
`client_session`. Both engines overwrite an existing pulse by `PulseIndex.replace` alone, so a limit
on the size of a pulse must hold there too, as `max_bytes` does.
"""

import os
import re
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from stormkeeper.errors import NotAuthorizedError

#: Tombstones: twice the workers of the largest known clusters.
MAX_TOMBSTONES: Final = 16_384
MAX_TOMBSTONE_BYTES: Final = 4_194_304
#: Age in seconds after which tombstones are dropped. A reader that was away longer reads anew.
TOMBSTONE_SECONDS: Final = 3_600.0

#: C0, DEL, and C1 as UTF-8, on which a terminal would act.
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
_SHOWN: Final = 200


class LimitError(NotAuthorizedError):
    """A request exceeds a limit; `cause` is a label of the metrics."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of a store, in bytes unless the name says otherwise.

    `store_bytes` bounds pulses with their paths, `index_bytes` the memory of index and directories;
    0 means no limit.
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
        """Read ``pacemaker.store.max.bytes`` and ``pacemaker.path.max.*``.

        By default a store takes half of the allowed memory, and index and directories a quarter:
        many tiny pulses would otherwise take a hundred times their own size.
        """
        store_bytes, memory = conf["pacemaker.store.max.bytes"], memory_allowed()
        return cls(
            store_bytes=memory // 2 if store_bytes is None else store_bytes,
            index_bytes=0 if store_bytes == 0 else memory // 4,
            path_bytes=conf["pacemaker.path.max.bytes"],
            path_segments=conf["pacemaker.path.max.segments"],
        )

    def check_size(self, path: bytes) -> None:
        """Raise `LimitError` if `path` has too many bytes or segments.

        The empty segment before a leading slash does not count.
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
        """Raise `LimitError` if `path` is not UTF-8 or has control characters."""
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
    """Return the bytes of memory that this process may use.

    The smallest of the machine's memory, the limits of its control groups (version 1 or 2), and the
    limit of address space.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [machine, *_group_limits(proc, cgroups)]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def _group_limits(proc: Path, cgroups: Path) -> Iterator[int]:
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
    """Quote the beginning of a path for the log, without control characters."""
    return repr(path[:_SHOWN])[1:]
