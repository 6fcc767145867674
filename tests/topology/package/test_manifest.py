"""The manifest: what it looks like, and what it may not say."""

import json

import msgspec
import pytest

from stormkeeper.errors import SerializationError, TopologyError
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.manifest import (
    PackageManifest,
    PackedFile,
    Versions,
    decode,
    encode,
)

DIGEST = "0" * 64


def file(name, size=1):
    return PackedFile(name, size, DIGEST)


GOOD = PackageManifest(
    version=1,
    name="word-count",
    entry_point="code/word_count.py",
    arguments=("--day", "2026-03-01"),
    py_files=("py-files/b.py", "py-files/a.zip"),
    jars=("jars/connector.jar",),
    wheels=("wheels/six-1.17.0-py2.py3-none-any.whl",),
    jvm_packages=("org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0",),
    requirements=("six==1.17.0",),
    made_with=Versions(python="3.11.7", stormkeeper="0.1.0", pyspark=None),
    files=(
        file("code/word_count.py"),
        file("description.json"),
        file("jars/connector.jar"),
        file("py-files/a.zip"),
        file("py-files/b.py"),
        file("wheels/six-1.17.0-py2.py3-none-any.whl"),
    ),
)


def changed(**fields):
    return json.dumps(json.loads(encode(GOOD)) | fields).encode()


def with_file(name, size=1):
    files = sorted([*GOOD.files, file(name, size)], key=lambda one: one.name)
    return changed(files=msgspec.to_builtins(files))


def test_it_is_read_as_it_was_written():
    assert decode(encode(GOOD)) == GOOD


def test_what_it_looks_like():
    assert json.loads(encode(GOOD)) == {
        "version": 1,
        "name": "word-count",
        "entry_point": "code/word_count.py",
        "arguments": ["--day", "2026-03-01"],
        "py_files": ["py-files/b.py", "py-files/a.zip"],
        "jars": ["jars/connector.jar"],
        "wheels": ["wheels/six-1.17.0-py2.py3-none-any.whl"],
        "jvm_packages": ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"],
        "requirements": ["six==1.17.0"],
        "made_with": {"python": "3.11.7", "stormkeeper": "0.1.0", "pyspark": None},
        "files": [{"name": one.name, "size": 1, "sha256": DIGEST} for one in GOOD.files],
    }


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no manifest of a package: Input data was truncated"),
        (b"\xff", "no manifest of a package"),
        (b"[" * 100_000, "no manifest of a package"),
        (b"{}", "missing required field `version`"),
        (changed(version=2), "has the version 2, and this release .* reads version 1: submit"),
        (changed(more=1), "unknown field `more`"),
        (changed(name="a/b"), "'a/b' is no name for a topology"),
        (changed(entry_point="code/other.py"), "there is no file 'code/other.py'"),
        (changed(entry_point="py-files/b.py"), "'py-files/b.py' is no script in code/"),
        (changed(files=[]), "there is no file 'description.json'"),
        (changed(files=[{"name": "a", "size": -1, "sha256": DIGEST}]), "Expected `int` >= 0"),
        (changed(files=[{"name": "a", "size": 1, "sha256": "x"}]), "matching regex"),
        (changed(files=msgspec.to_builtins(GOOD.files[::-1])), "its files are not sorted"),
        (with_file("code/../x"), "has the part '..'"),
        (with_file("/etc/x"), "is absolute"),
        (with_file("code/word_count.py/x"), "both a file and the folder"),
        (with_file("elsewhere"), "'elsewhere' is in no folder of a package"),
        (with_file("manifest.json"), "'manifest.json' is in no folder of a package"),
        (with_file("code/large", manifest.MAX_BYTES), "its files have 2,000,000,006 bytes"),
        (with_file("jars/other.jar"), "the list of files in jars/ is not what is there"),
        (changed(wheels=[]), "the list of files in wheels/ is not what is there"),
        (changed(py_files=["py-files/a.zip"] * 2), "the list of files in py-files/"),
        (changed(jvm_packages=["a:b"]), "'a:b' is no package of a Maven repository"),
        (changed(jvm_packages=["a:b:c,d:e:f"]), "is no package of a Maven repository"),
        (changed(requirements=["six"]), "'six' allows several versions"),
        (changed(requirements=["--index=x"]), "pip's option --index"),
        (b" " * (manifest.MAX_MANIFEST_BYTES + 1), "may have 8,388,608 bytes, not 8,388,609"),
    ],
)
def test_what_is_no_manifest(data, said):
    with pytest.raises(SerializationError, match=said):
        decode(data)


def test_write_refuses_unreadable_packages():
    with pytest.raises(TopologyError, match="'word-count' cannot be packed: 'a' is no package of"):
        encode(msgspec.structs.replace(GOOD, jvm_packages=("a",)))
    long = msgspec.structs.replace(GOOD, arguments=("x" * manifest.MAX_MANIFEST_BYTES,))
    with pytest.raises(TopologyError, match="bring long arguments in a file"):
        encode(long)


def test_two_files_of_one_name():
    twice = msgspec.structs.replace(GOOD, files=(GOOD.files[0], *GOOD.files))
    with pytest.raises(TopologyError, match="would be the same file"):
        encode(twice)
