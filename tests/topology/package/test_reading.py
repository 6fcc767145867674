"""Reading a package: what was packed comes out, and nothing else is taken for one."""

import io
import json
import stat
import struct
import tempfile
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper import names
from stormkeeper.errors import SerializationError
from stormkeeper.topology import description
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.archive import PLAIN, TIME, read_package, unpack
from support.packages import of_folder, packed, tree

FILES = {"topology.py": "x = 1\n", "data/b.csv": "1,2\n" * 50}

PARTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).filter(
    lambda part: names.file_fault(part) is None and not part.startswith(".")
)
TREES = st.dictionaries(
    st.lists(PARTS, min_size=1, max_size=3).map("/".join), st.binary(max_size=200), max_size=6
).filter(lambda files: names.clash([*files, "topology.py"]) is None)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The bytes of a package, which no test changes."""
    return packed(of_folder(tree(tmp_path_factory.mktemp("job"), FILES)))[0].getvalue()


@given(TREES)
@settings(max_examples=25)
def test_what_was_packed_comes_out(files):
    with tempfile.TemporaryDirectory() as temporary:
        folder = tree(Path(temporary, "job"), {**files, "topology.py": "y = 2"})
        file, made = packed(of_folder(folder))
        package = read_package(file)
        assert package.manifest == made
        assert package.description == description.of_script(Path("topology.py"))
        unpack(file, Path(temporary, "out"))
        for one in made.files:
            content = b"".join(package.chunks(one))
            assert Path(temporary, "out", one.name).read_bytes() == content
            if one.name.startswith("code/"):
                assert (folder / one.name.removeprefix("code/")).read_bytes() == content


def test_it_writes_nothing_and_leaves_its_file_open(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO(good)
    read_package(file)
    assert not file.closed
    assert [*tmp_path.iterdir()] == []


def entry(name, mode=PLAIN, **fields):
    info = zipfile.ZipInfo(name, TIME)
    info.create_system, info.external_attr = 3, mode << 16
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def made(good, change=None, more=(), infos=None):
    """A package with a changed manifest, more entries, or the entries of its files changed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(file, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "manifest.json" and change is not None:
                fields = json.loads(data)
                change(fields)
                data = json.dumps(fields).encode()
            fresh = entry(info.filename, info.external_attr >> 16)
            if infos is not None and info.filename == "code/topology.py":
                infos(fresh)
            new.writestr(fresh, data)
        with warnings.catch_warnings(action="ignore"):  # of names that are there twice
            for info, data in more:
                new.writestr(info, data)
    return file.getvalue()


def listed(name, size, digest="0" * 64):
    def change(fields):
        fields["files"].append({"name": name, "size": size, "sha256": digest})
        fields["files"].sort(key=lambda one: one["name"])

    return change


def test_one_made_in_this_way_is_read(good):
    assert (
        read_package(io.BytesIO(made(good))).manifest.name
        == read_package(io.BytesIO(good)).manifest.name
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../../etc/cron.d/x", "has the part '..'"),
        ("/etc/cron.d/x", "is absolute"),
        ("code\\..\\x", "has the character"),
        ("code/topology.py", "would be the same file"),
        ("code/topology.py/x", "both a file and the folder"),
        ("manifest.json", "would be the same file"),
        ("code/folder/", "has the part ''"),
        (
            "code/not_listed.py",
            "the manifest and the files .* differ, first at 'code/not_listed.py'",
        ),
    ],
)
def test_an_entry_that_may_not_be_there(good, name, said):
    with pytest.raises(SerializationError, match=said):
        read_package(io.BytesIO(made(good, more=[(entry(name), b"x")])))


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (stat.S_IFLNK | 0o777, "'code/topology.py' is no plain file, but lrwxrwxrwx"),
        (stat.S_IFREG | 0o4755, "but -rwsr-xr-x"),
        (stat.S_IFREG | 0o666, "but -rw-rw-rw-"),
        (stat.S_IFDIR | 0o755, "but drwxr-xr-x"),
        (stat.S_IFCHR | 0o644, "but crw-r--r--"),
        (0, "is no plain file"),
    ],
)
def test_an_entry_that_is_no_plain_file(good, mode, said):
    def change(info):
        info.external_attr = mode << 16

    with pytest.raises(SerializationError, match=said):
        read_package(io.BytesIO(made(good, infos=change)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("comment", b"c"),
        ("extra", struct.pack("<HHQ", 0x9999, 8, 0)),
        ("compress_type", zipfile.ZIP_BZIP2),
        ("compress_type", zipfile.ZIP_LZMA),
    ],
)
def test_an_entry_of_another_kind_of_zip(good, field, value):
    def change(info):
        setattr(info, field, value)

    with pytest.raises(SerializationError, match="or packed in a way that no package is"):
        read_package(io.BytesIO(made(good, infos=change)))


def test_encrypted_zip_is_refused(good):
    # The flags of the first entry of the table of contents.
    place = good.index(b"PK\x01\x02") + 8
    data = good[:place] + b"\x01" + good[place + 1 :]
    with pytest.raises(
        SerializationError, match=r"no package: .* is encrypted, or packed in a way"
    ):
        read_package(io.BytesIO(data))


def test_a_file_that_is_missing(good):
    with pytest.raises(SerializationError, match="differ, first at 'code/a'"):
        read_package(io.BytesIO(made(good, change=listed("code/a", 1))))


def test_a_file_of_another_content(good):
    def change(fields):
        fields["files"][1]["sha256"] = "0" * 64

    with pytest.raises(SerializationError, match=r"'code/topology.py' .* is not the one that was"):
        read_package(io.BytesIO(made(good, change=change)))


def test_a_description_of_another_content(good):
    def change(fields):
        fields["files"][2]["sha256"] = "0" * 64

    with pytest.raises(SerializationError, match=r"'description.json' .* is not the one"):
        read_package(io.BytesIO(made(good, change=change)))


def test_one_without_a_manifest():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(entry("code/topology.py"), b"")
    with pytest.raises(SerializationError, match=r"has no manifest\.json"):
        read_package(file)


def test_a_bomb(good):
    bomb = entry("code/bomb", compress_type=zipfile.ZIP_DEFLATED)
    data = made(good, change=listed("code/bomb", 32 * 2**20), more=[(bomb, bytes(32 * 2**20))])
    assert len(data) < 100_000
    with pytest.raises(SerializationError, match="and may have 100 times the"):
        read_package(io.BytesIO(data))


def test_zip_bomb_with_a_false_size_is_refused(good):
    bomb = entry("code/bomb", compress_type=zipfile.ZIP_DEFLATED)
    data = bytearray(made(good, change=listed("code/bomb", 5), more=[(bomb, bytes(32 * 2**20))]))
    for mark, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.rindex(mark) + at
        assert data[place : place + 4] == struct.pack("<L", 32 * 2**20)
        data[place : place + 4] = struct.pack("<L", 5)
    with pytest.raises(SerializationError, match=r"'code/bomb' .* is not the one|broken: Bad CRC"):
        read_package(io.BytesIO(bytes(data)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda good: good[:0], "does not end as a zip"),
        (lambda good: good[:-1], "does not end as a zip"),
        (lambda good: good + b"x", "does not end as a zip"),
        (lambda good: b"#!/bin/sh\n" + good, "has something beside"),
        (lambda good: good[:-2] + b"\x01\x00", "has something beside"),
        (lambda good: good[-22:], "has something beside"),
        (lambda good: good[:-42] + b"PK\x06\x07" + good[-38:], "has something beside"),
    ],
)
def test_a_zip_of_another_kind(good, change, said):
    with pytest.raises(SerializationError, match=said):
        read_package(io.BytesIO(change(good)))


def test_a_long_table_of_contents():
    table = bytes(10_001 * 1070 + 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(table), 0, 0)
    with pytest.raises(SerializationError, match="has 10,701,071 bytes, and may have 10,701,070"):
        read_package(io.BytesIO(table + end))


def test_more_files_than_a_package_may_have(good):
    more = [(entry(f"code/{number}"), b"") for number in range(manifest.MAX_FILES)]
    with pytest.raises(SerializationError, match="it has 10,003 files, and may have 10,000"):
        read_package(io.BytesIO(made(good, more=more)))


@given(st.binary(max_size=400))
def test_any_bytes(data):
    with pytest.raises(SerializationError):
        read_package(io.BytesIO(data))


@given(st.data())
@settings(max_examples=200)
def test_a_package_of_which_bytes_were_changed(good, data):
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(good) - 1))
        changed[place] = data.draw(st.integers(0, 255))
    before = read_package(io.BytesIO(good))
    try:
        package = read_package(io.BytesIO(bytes(changed)))
    except SerializationError:
        return
    # What nobody reads may differ, such as a time. What comes out may not, where the manifest is
    # the same; its own bytes are not in any list.
    if package.manifest == before.manifest:
        for file in package.manifest.files:
            assert b"".join(package.chunks(file)) == b"".join(before.chunks(file))


def test_a_manifest_that_is_too_long():
    more = [(entry("manifest.json"), b" " * (manifest.MAX_MANIFEST_BYTES + 1))]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for info, content in more:
            archive.writestr(info, content)
    with pytest.raises(SerializationError, match="manifest may have 8,388,608 bytes"):
        read_package(file)
