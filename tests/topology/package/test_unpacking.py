"""Laying out a package: whole, or not at all."""

import errno
import io
import os
import stat

import pytest

from stormkeeper.errors import SerializationError
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.archive import remove_unfinished, unpack
from support.packages import of_folder, packed, tree

FILES = {"topology.py": "x = 1\n", "data/b.csv": "1,2\n", "run.sh": "#!/bin/sh\n"}


@pytest.fixture
def package(tmp_path):
    folder = tree(tmp_path / "job", FILES)
    (folder / "run.sh").chmod(0o755)
    return packed(of_folder(folder))


@pytest.fixture
def place(tmp_path):
    (tmp_path / "there").mkdir()
    return tmp_path / "there" / "package"


def broken(file):
    data = bytearray(file.getvalue())
    data[50] ^= 0xFF  # in the first file
    return io.BytesIO(data)


def test_it_is_laid_out(package, place):
    file, made = package
    assert unpack(file, place) == made
    for name, text in FILES.items():
        assert (place / "code" / name).read_text() == text
    assert manifest.decode((place / "manifest.json").read_bytes()) == made
    assert [*place.parent.iterdir()] == [place]


def test_it_is_its_owners_alone(package, place):
    unpack(package[0], place)
    for path in (place, *place.rglob("*")):
        wanted = 0o700 if path.is_dir() or path.name == "run.sh" else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_nothing_is_left_of_a_broken_one(package, place):
    with pytest.raises(SerializationError):
        unpack(broken(package[0]), place)
    assert [*place.parent.iterdir()] == []


def test_nothing_is_left_where_the_disk_is_full(package, place, monkeypatch):
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(package[0], place)
    assert [*place.parent.iterdir()] == []


def test_who_was_first_stays(package, place):
    unpack(package[0], place)
    inode = place.stat().st_ino
    unpack(package[0], place)
    assert place.stat().st_ino == inode
    assert [*place.parent.iterdir()] == [place]


def test_what_else_is_in_its_place_is_not_taken_for_it(package, place):
    tree(place, {"something": ""})
    with pytest.raises(OSError, match="not empty"):
        unpack(package[0], place)
    assert [*place.parent.iterdir()] == [place]


def test_readers_see_whole_content_only(package, place, monkeypatch):
    seen = []
    sync = os.fsync

    def looking(descriptor):
        seen.append(place.exists())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", looking)
    unpack(package[0], place)
    # Of each file, each folder with one, and, when all is there, the folder that holds it.
    assert seen == [False] * (len(seen) - 1) + [True]
    assert len(seen) > len(FILES)


def test_what_a_killed_process_has_left(place):
    tree(place.parent, {".unpacking-x/code/a": "", "package/manifest.json": ""})
    remove_unfinished(place.parent)
    assert [*place.parent.iterdir()] == [place]
