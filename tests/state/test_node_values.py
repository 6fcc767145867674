"""Every kind of value of Storm's layout, and bytes that nobody should have written."""

import json
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.state.node_values import HEX_WIDTH, LIMIT, SHOWN, decode, outline
from stormkeeper.state.storm.blob_records import BlobRecord
from stormkeeper.thrift import readable, records
from stormkeeper.thrift.serialization import Compression, serialize
from support import vectors
from support.record_strategies import records as any_record

ID = "wc-1-1700000000"
ZNODES = {
    name: {
        # Storm's root is the first name of a vector's path.
        "/" + vector["path"].split("/", 2)[2]: vector
        for vector in vectors.load(name)
        if vector["path"].count("/") > 1
    }
    for name in ("znodes-gzip", "znodes-zstd")
}
#: Where each kind of record is kept.
PLACES = {
    "Assignment": f"/assignments/{ID}",
    "StormBase": f"/storms/{ID}",
    "SupervisorInfo": "/supervisors/sup-aaaa-10.0.0.1",
    "NimbusSummary": "/nimbuses/nimbus1.example:6627:0",
    "ClusterWorkerHeartbeat": f"/workerbeats/{ID}/sup-aaaa-10.0.0.1-6700",
    "Credentials": f"/credentials/{ID}",
    "LogConfig": f"/logconfigs/{ID}",
    "ProfileRequest": f"/profilerconfigs/{ID}/sup-aaaa-10.0.0.1_6700_JPROFILE_STOP",
    "TaskInfo": f"/tasks/{ID}/7",
    "TaskHeartbeat": f"/taskbeats/{ID}/7",
}
#: Storm's records of these kinds, plain and compressed.
RECORDS = {
    vector["name"]: vector
    for vector in vectors.load("pacemaker")
    if (match := re.match(r"(thrift|gzip|zstd)\.(\w+)", vector["name"])) and match[2] in PLACES
}
ERRORS = [
    f"/errors/{ID}/split+bolt/e0000000003",
    f"/errors/{ID}/split+bolt-last-error",
    f"/taskerrors/{ID}/7/e0000000003",
]


@pytest.mark.parametrize("release", ZNODES)
def test_every_znode_of_storm_is_decoded_without_a_note(release):
    kinds = set()
    for path, vector in ZNODES[release].items():
        found = decode(path, bytes.fromhex(vector["hex"] or ""), show_secrets=True)
        assert found.note is None, (path, found)
        assert found.kind not in ("bytes", "java"), path
        assert (found.text == "") == (found.kind == "directory")
        kinds.add(found.kind)
    assert kinds >= {*PLACES, "ErrorInfo", "BlobHolder"} - {"TaskInfo", "TaskHeartbeat"} | {
        "directory"
    }


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_storm_reads_as_its_json(name):
    record = vectors.build(RECORDS["thrift." + name.partition(".")[2]]["json"])
    data = bytes.fromhex(RECORDS[name]["hex"])
    found = decode(PLACES[type(record).__name__], data, show_secrets=True)
    assert found.kind == type(record).__name__
    assert found.value == readable.to_builtins(record)
    assert undated(found.text) == undated(readable.render(record))


def undated(text):
    """The text without the dates of times."""
    return re.sub(r" \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)", "", text)


BASE = records.StormBase("wc", records.TopologyStatus.ACTIVE, 1, launch_time_secs=1795314436)
LEVELS = {
    "a": records.LogLevel(
        records.LogLevelAction.UPDATE, reset_log_level_timeout_epoch=1795314436000
    )
}
REQUEST = records.ProfileRequest(
    records.NodeInfo("h", {1}), records.ProfileAction.JPROFILE_STOP, 1795314436000
)


@pytest.mark.parametrize(
    ("place", "record", "shown"),
    [
        ("StormBase", BASE, "launch-time-secs  1795314436 (DATE)"),
        ("SupervisorInfo", records.SupervisorInfo(1795314436, "h"), "time-secs  1795314436 (DATE)"),
        ("TaskHeartbeat", records.TaskHeartbeat(1795314436, 1), "time-secs    1795314436 (DATE)"),
        ("ProfileRequest", REQUEST, "time-stamp  1795314436000 (DATE)"),
        (
            "Assignment",
            records.Assignment("/dir", executor_start_time_secs={(1, 2): 1795314436, (3, 3): 0}),
            "  [1-2]  1795314436 (DATE)\n  [3-3]  0\n",
        ),
        (
            "LogConfig",
            records.LogConfig(LEVELS),
            "reset-log-level-timeout-epoch  1795314436000 (DATE)",
        ),
    ],
)
def test_times_have_their_date_where_people_read_them(place, record, shown):
    value = readable.to_builtins(record)
    found = decode(PLACES[place], serialize(record))
    assert shown.replace("DATE", "2026-11-22 02:27:16 UTC") in found.text + "\n"
    assert json.loads(json.dumps(found.value)) == json.loads(json.dumps(value))
    assert "UTC" not in json.dumps(found.value)


def test_back_pressure_is_labelled():
    found = decode(f"/backpressure/{ID}/n-6700", struct.pack(">q", 1795314847000))
    assert found.text == "under back-pressure since  1795314847000 (2026-11-22 02:34:07 UTC)"
    assert found.value == 1795314847000


@pytest.mark.parametrize("time", [-1, -(1 << 63), (1 << 63) - 1])
def test_a_time_that_is_none_has_no_date(time):
    found = decode(f"/backpressure/{ID}/n-6700", struct.pack(">q", time))
    assert found.text.endswith(f"since  {time}")


class TestCredentials:
    PATH = PLACES["Credentials"]
    DATA = serialize(records.Credentials({"user": "s3cret", "ticket": "t1cket"}, "alice"))

    def test_values_are_hidden_unless_they_are_asked_for(self):
        found = decode(self.PATH, self.DATA)
        assert found.kind == outline(self.PATH, self.DATA).kind == "Credentials"
        assert found.value == {"creds": {"user": "…", "ticket": "…"}, "topoOwner": "alice"}
        assert "user" in found.text
        assert "not shown without --show-secrets" in found.note
        assert not re.search("s3cret|t1cket", repr(found))
        found = decode(self.PATH, self.DATA, show_secrets=True)
        assert found.value["creds"] == {"user": "s3cret", "ticket": "t1cket"}
        assert "s3cret" in found.text
        assert found.note is None

    @pytest.mark.parametrize("path", [PATH, PATH + "/below", "/credentials"])
    def test_nothing_is_told_of_what_cannot_be_read(self, path):
        data = b"s3cret and what is no record"
        found = decode(path, data)
        assert (found.kind, found.value) == ("bytes", {"bytes": len(data)})
        assert "its bytes are not shown without --show-secrets" in found.note
        assert data.hex() not in repr(found)
        assert decode(path, data, show_secrets=True).value == {
            "hex": data.hex(),
            "text": data.decode(),
        }

    def test_where_there_are_none_nothing_is_hidden(self):
        assert decode(self.PATH, serialize(records.Credentials({}))).note is None

    def test_the_epoch_is_told(self):
        data = serialize(records.Credentials({"a": "b"}, leader_epoch=7))
        assert decode(self.PATH, data).epoch == outline(self.PATH, data).epoch == 7


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("path", ERRORS)
def test_errors_of_components_and_of_tasks(path, compression):
    error = records.ErrorInfo("boom\n\tat split", 1_700_000_000, "host", 6700)
    found = decode(path, serialize(error, compression))
    assert (found.kind, found.value["host"]) == ("ErrorInfo", "host")


def test_storm_2_names_a_nimbus_without_a_port_for_tls():
    summary = records.NimbusSummary("nimbus1.example", 6627, 7, True, "2.8.8")
    found = decode("/nimbuses/nimbus1.example:6627", serialize(summary))
    assert (found.kind, found.value["isLeader"]) == ("NimbusSummary", True)


def test_the_epoch_of_a_leader_is_told_where_the_record_has_one():
    base = records.StormBase("wc", records.TopologyStatus.ACTIVE, 1)
    assert decode(f"/storms/{ID}", serialize(base)).epoch is None
    base.leader_epoch = 0x1_0000_0007
    assert decode(f"/storms/{ID}", serialize(base)).epoch == 0x1_0000_0007


def test_the_deadline_of_a_kill_is_told_with_its_date():
    killed = records.StormBase("wc", records.TopologyStatus.KILLED, 1)
    killed.deadline_ms = 1_700_000_000_000
    found = decode(f"/storms/{ID}", serialize(killed))
    assert found.value["deadline_ms"] == killed.deadline_ms
    assert "2023-11-14" in found.text


@pytest.mark.parametrize("path", ["/", "/storms", f"/errors/{ID}", f"/errors/{ID}/a-last-error"])
@pytest.mark.parametrize("data", [b"", b"\x07"])
def test_a_directory(path, data):
    assert decode(path, data) == ("directory", None, "", None, None, None)


@pytest.mark.parametrize("path", PLACES.values())
def test_a_directory_where_a_record_should_be_is_noted(path):
    found = decode(path, b"\x07")
    assert found.kind == "directory"
    assert "should be here" in found.note
    assert found.unreadable == found.note
    found = decode(path, b"")
    assert (found.kind, found.value, found.text) == ("bytes", {"hex": ""}, "")
    assert found.note == found.unreadable
    assert re.match(r"no bytes at all where (an [AEIO]|a [^AEIO])\w+ should be", found.note)


@pytest.mark.parametrize(
    ("path", "data", "kind", "value"),
    [
        ("/blobstoremaxkeysequencenumber/key", struct.pack(">i", 12), "number", 12),
        (f"/backpressure/{ID}/n-6700", struct.pack(">q", 1 << 40), "milliseconds", 1 << 40),
        ("/leader-lock/_c_a-latch-0000000001", "nimbus1.é:6627".encode(), "text", "nimbus1.é:6627"),
        ("/leader-lock/_c_a-latch-0000000001", b"", "text", ""),
        (
            "/blobstore/key/nimbus1.example:6627:0-3",
            b"",
            "BlobHolder",
            {"nimbus": "nimbus1.example:6627:0", "version": 3},
        ),
        (f"/workerbeats/{ID}/sink%3Aout-claimed", b"", "QueryClaim", {"query": "sink:out"}),
    ],
)
def test_values_that_are_no_records(path, data, kind, value):
    found = decode(path, data)
    assert (found.kind, found.value, found.note) == (kind, value, None)


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        ("/elsewhere", b"what\0", "nothing of Storm's"),
        (f"/storms/{ID}/below", b"what\xff", "nothing of Storm's"),
        (f"/storms/{ID}", b"what\x1b", "not a StormBase"),
        (f"/storms/{ID}", b"\x1f\x8b\x08damaged", "not a StormBase"),
        (f"/assignments/{ID}", b"what\x80", "not an Assignment: "),
        (f"/errors/{ID}/split/e1", "\u202e".encode(), "not an ErrorInfo: "),
        ("/blobstoremaxkeysequencenumber/key", b"1234\0", "5 bytes, where a number has 4"),
        ("/blobstoremaxkeysequencenumber/key/h:6627:0-1", b"{}\0", "not a record of a blob"),
        (f"/backpressure/{ID}/n-6700", b"\0", "1 byte, where a time has 8"),
        ("/leader-lock/_c_a", b"\xff\xff", "not UTF-8"),
    ],
)
def test_unreadable_bytes_are_hexadecimal_with_a_reason(path, data, reason):
    found = decode(path, data)
    assert (found.kind, found.value, found.text) == ("bytes", {"hex": data.hex()}, data.hex())
    assert reason in found.note
    assert "hexadecimal" in found.note
    if "nothing" in reason:
        assert found.unreadable is None
    else:
        assert found.unreadable in found.note


def test_a_record_of_a_blob_is_shown_field_by_field():
    record = BlobRecord(2, "ab" * 32, 17, 9, 5)
    found = decode("/blobstoremaxkeysequencenumber/key/h:6627:0-2", record.encode())
    assert (found.kind, found.note) == ("BlobRecord", None)
    assert found.value == json.loads(record.encode())
    assert f"sha256    {'ab' * 32}" in found.text.splitlines()


def test_many_bytes_are_many_lines():
    lines = decode("/elsewhere", bytes(range(256))).text.splitlines()
    assert "".join(lines) == bytes(range(256)).hex()
    assert {len(line) for line in lines} == {2 * HEX_WIDTH}


@pytest.mark.parametrize("path", ["/elsewhere", f"/storms/{ID}"])
def test_plain_text_is_shown_as_that(path):
    data = "owner:\tgrüße\n  of the root\n".encode()
    found = decode(path, data)
    assert (found.kind, found.value) == ("bytes", {"hex": data.hex(), "text": data.decode()})
    assert found.text == "owner:  grüße\n  of the root"
    assert found.note.endswith("; shown as the text that it is")
    assert (found.unreadable is None) == (path == "/elsewhere")


def test_of_what_is_very_large_people_see_the_beginning():
    for byte in (b"x", b"\0"):
        assert "beginning" not in decode("/elsewhere", byte * SHOWN).note
        data = byte * (2 * SHOWN)
        found = decode("/elsewhere", data)
        assert "only its beginning: it has 8192 bytes" in found.note
        assert found.value["hex"] == data.hex()
    assert len("".join(found.text.splitlines())) == 2 * SHOWN
    found = decode("/elsewhere", b"x" * (SHOWN + 1))
    assert (found.text, found.value["text"]) == ("x" * SHOWN, "x" * (SHOWN + 1))


def test_what_java_serialised_is_named():
    (vector,) = (v for v in vectors.load("pacemaker") if v["name"] == "java.NimbusInfo")
    found = decode("/leader-info", bytes.fromhex(vector["hex"]))
    assert found.kind == "java"
    assert "org.apache.storm.nimbus.NimbusInfo" in found.note
    for cut in range(4, 60):
        assert decode("/leader-info", bytes.fromhex(vector["hex"])[:cut]).kind == "java"


def test_what_java_did_not_serialise_is_no_leaders():
    found = decode("/leader-info", b"nimbus1:6627")
    assert found.kind == "bytes"
    assert "not what Java serialises" in found.note
    assert "nothing of Storm's is kept" in decode("/leader-info/x", b"nimbus1:6627").note


def test_nothing_of_a_private_key_is_shown():
    secret = b"a secret that nobody is told"
    key = records.PrivateWorkerKey(secret, "alice", 1_700_000_000_000)
    told = [
        decode(f"/secretkeys/NIMBUS/{ID}/1", data)
        for data in (serialize(key, Compression.PLAIN), serialize(key)[:-9], secret)
    ] + [decode("/secretkeys/deeper/or/not/at/all", secret)]
    for found in told:
        assert found.kind == "PrivateWorkerKey"
        assert found.note
        for text in (repr(found), json.dumps(found)):
            assert secret.hex() not in text
            assert secret.decode() not in text
    assert told[0].value["userName"] == "alice"


def test_a_bomb_is_not_let_off():
    bomb = serialize(records.Credentials({"a": "x" * (LIMIT + 1)}))
    found = decode(f"/credentials/{ID}", bomb)
    assert found.kind == "bytes"
    assert str(LIMIT) in found.note


def test_what_a_terminal_would_obey_is_escaped():
    found = decode("/leader-lock/_c_a", b"\x1b[2Jnimbus\n")
    assert found.text == "\\x1b[2Jnimbus\\n"


_TOPS = {path.split("/")[1] for path in (*PLACES.values(), *ERRORS)} | {
    *("leader-lock", "leader-info", "blobstore", "blobstoremaxkeysequencenumber"),
    *("backpressure", "secretkeys", "elsewhere"),
}
_NAMES = st.sampled_from(sorted(_TOPS)) | st.text(max_size=8)
_CLASSES = [getattr(records, name) for name in (*PLACES, "ErrorInfo", "PrivateWorkerKey")]
_PATHS = st.lists(_NAMES, max_size=4).map(lambda names: "/" + "/".join(names)) | st.text()
_DATA = (
    st.binary(max_size=200)
    | st.builds(
        serialize, st.sampled_from(_CLASSES).flatmap(any_record), st.sampled_from(Compression)
    )
    | st.binary(max_size=80).map(lambda rest: b"\xac\xed\x00\x05sr" + rest)
)


@given(_PATHS, _DATA)
def test_nothing_raises_whatever_path_and_bytes_are(path, data):
    found = decode(path, data)
    assert json.loads(json.dumps(found.value)) == found.value
    assert all(line.isprintable() for line in found.text.splitlines())
    assert found.kind not in ("bytes", "java") or found.note
    seen = outline(path, data)
    assert (seen.kind, seen.epoch) == (found.kind, found.epoch)
    assert (seen.unreadable is None) == (found.unreadable is None)
