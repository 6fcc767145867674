"""Disks that are full, and what is on them."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Have no file of this process grow beyond `size` bytes: a disk that is full, to who writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files(folder: Path) -> set[str]:
    """The names of all files below a folder."""
    with suppress(FileNotFoundError):
        return {path.name for path in folder.rglob("*") if path.is_file()}
    return set()
