"""Disks that are full, and what is on them."""

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """Mount a disk of that size at a folder; yields what mounts it again with other options.

    Skips the test where this process may not mount.
    """

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        subprocess.run(command, check=True, capture_output=True)

    try:
        mount(f"size={size}")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a disk needs root: {error}")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


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
