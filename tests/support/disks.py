"""Disks that are full, and what is on them."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """Mount a disk of that size at a folder; skips the test where this process may not mount."""
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a disk needs root: {error}")
    try:
        yield
    finally:
        _run("umount", "--lazy", folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Have a mounted disk be read-only, also to processes that have files of it open."""
    # A second mount on top of the first: the first cannot change while files are written to.
    _run("mount", "--bind", folder, folder)
    try:
        _run("mount", "-o", "remount,bind,ro", folder)
        yield
    finally:
        _run("umount", "--lazy", folder)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


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
