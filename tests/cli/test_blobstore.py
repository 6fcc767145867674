"""``storm blobstore`` with a small Nimbus."""

import json

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.thrift.nimbus import AccessControl, AccessControlType, SettableBlobMeta
from support.blob_nimbus import BlobNimbus
from support.small_nimbus import serving

#: More than one piece, there and back.
DATA = bytes(range(256)) * 2_000


@pytest.fixture
def nimbus():
    return BlobNimbus()


@pytest.fixture
def run(environ, nimbus):
    """Run ``storm blobstore`` on the cluster of the small Nimbus."""
    with serving(nimbus) as seed:

        def invoke(*arguments, given=None):
            options = ["-c", f"nimbus.seeds=[{seed}]"]
            return CliRunner(env=environ).invoke(
                command, ["blobstore", *map(str, arguments), *options], input=given
            )

        yield invoke


def test_a_blob_there_and_back(run, nimbus, tmp_path):
    file, copy = tmp_path / "rates.csv", tmp_path / "copy"
    file.write_bytes(DATA)
    told = run("create", "rates", "-f", file, "-r", "2")
    assert (told.exit_code, told.stderr) == (0, "storm: created rates with 512000 bytes\n")
    assert nimbus.blobs == {"rates": DATA}
    assert nimbus.metas["rates"].replication_factor == 2
    assert ("create state", "rates") in nimbus.calls
    assert run("cat", "rates").stdout_bytes == DATA
    assert run("cat", "rates", "-f", copy).exit_code == 0
    assert copy.read_bytes() == DATA
    assert sorted(path.name for path in tmp_path.glob("*copy*")) == ["copy"]


def test_standard_input_and_a_new_version(run, nimbus):
    assert run("create", "key", given=b"old").exit_code == 0
    told = run("update", "key", given=b"newer")
    assert (told.exit_code, told.stderr) == (0, "storm: key has 5 bytes now\n")
    assert nimbus.blobs == {"key": b"newer"}


def test_the_list_of_all_and_of_some(run, nimbus):
    acl = [
        AccessControl(AccessControlType.OTHER, None, 1),
        AccessControl(AccessControlType.USER, "bob", 7),
    ]
    for key in ("c", "a", "b"):
        nimbus.blobs[key], nimbus.metas[key] = key.encode(), SettableBlobMeta(acl, 3)
    lines = [f"{key} 1 [o::r--, u:bob:rwa]" for key in "abc"]
    assert run("list").stdout.splitlines() == lines
    told = run("list", "b", "x", "a")
    assert (told.exit_code, told.stdout.splitlines()) == (1, [lines[1], lines[0]])
    assert told.stderr == "storm: there is no blob x; see `storm blobstore list`\n"
    (found,) = json.loads(run("list", "b", "--json").stdout)
    assert found == {"key": "b", "version": 1, "acl": ["o::r--", "u:bob:rwa"], "replication": 3}


def test_an_empty_list(run):
    assert run("list").stdout == ""
    assert json.loads(run("list", "--json").stdout) == []


def test_delete_and_replication(run, nimbus):
    nimbus.blobs["key"], nimbus.metas["key"] = b"x", SettableBlobMeta([])
    assert run("replication", "key").stdout == "Current replication factor 1\n"
    assert run("replication", "--read", "key").stdout == "Current replication factor 1\n"
    assert run("replication", "key", "-r", "3").stdout == "Current replication factor 3\n"
    assert run("replication", "--update", "--replication-factor", "2", "key").exit_code == 0
    told = run("replication", "key", "--json")
    assert json.loads(told.stdout) == {"key": "key", "replication": 2}
    assert run("delete", "key").exit_code == 0
    assert nimbus.blobs == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cat", "none"], "there is no blob none; see `storm blobstore list`"),
        (["update", "none"], "there is no blob none; see `storm blobstore list`"),
        (["delete", "none"], "there is no blob none; see `storm blobstore list`"),
        (["replication", "none"], "there is no blob none; see `storm blobstore list`"),
        (["create", "there"], "there is a blob there already"),
    ],
)
def test_what_cannot_be_done_is_said(run, nimbus, arguments, said):
    nimbus.blobs["there"], nimbus.metas["there"] = b"x", SettableBlobMeta([])
    told = run(*arguments)
    assert (told.exit_code, told.stdout, told.stderr) == (1, "", f"storm: {said}\n")


@pytest.mark.parametrize(
    "arguments", [["--update"], ["--read", "-r", "2"], ["--read", "--update"], ["-r", "0"]]
)
def test_a_replication_that_makes_no_sense(run, arguments):
    assert run("replication", "key", *arguments).exit_code == 2


def test_a_download_that_is_not_whole_replaces_nothing(run, nimbus, tmp_path):
    nimbus.blobs["key"], nimbus.missing = b"x" * 10, 5
    copy = tmp_path / "copy"
    copy.write_bytes(b"as it was")
    told = run("cat", "key", "-f", copy)
    assert (told.exit_code, told.stderr) == (
        1,
        "storm: Nimbus sent 10 of the 15 bytes of key: try again\n",
    )
    assert copy.read_bytes() == b"as it was"
    assert [path.name for path in tmp_path.glob("*copy*")] == ["copy"]
    told = run("cat", "key", "-f", tmp_path / "no folder" / "copy")
    assert told.exit_code == 1
    assert "cannot be written: No such file or directory" in told.stderr


def test_an_upload_that_fails_is_forgotten(run, nimbus):
    def fail(_session, _chunk):
        raise OSError("disk full")

    nimbus.uploadBlobChunk = fail
    told = run("create", "key", given=b"x")
    assert told.exit_code == 1
    assert "Internal error processing uploadBlobChunk" in told.stderr
    assert (nimbus.cancelled, nimbus.blobs) == (["session-0"], {})
