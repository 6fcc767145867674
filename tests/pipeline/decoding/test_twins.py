"""Both engines make the same rows of any bytes, and those that the records say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.pipeline.decoded_rows import decode
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, QueryActivity
from stormkeeper.thrift.serialization import Compression, Release, serialize, uncompressed
from support import vectors
from support.decoding import ENGINES, any_heartbeat, by_records, rows_of
from support.heartbeats import bolt, heartbeat, spout

GOLDEN = {
    vector["name"]: bytes.fromhex(vector["hex"])
    for name in ("pacemaker", "storm-2.8")
    for vector in vectors.load(name)
    if "ClusterWorkerHeartbeat" in vector["name"]
} | {
    f"{name}{vector['path']}": bytes.fromhex(vector["hex"])
    for name in ("znodes-gzip", "znodes-zstd")
    for vector in vectors.load(name)
    if "/workerbeats/" in vector["path"]
}

heartbeats = st.integers(0, 2**64).map(any_heartbeat)


def all_the_same(values):
    """Check that every engine says of values what their records say."""
    expected = [by_records(value) for value in values]
    for name in ENGINES:
        assert rows_of(values, name) == expected, name
    return expected


@pytest.mark.parametrize("value", GOLDEN.values(), ids=GOLDEN)
def test_what_storm_wrote_is_what_its_record_says(value):
    [row] = all_the_same([value])
    # Of the others, one may be a folder, which is no heartbeat.
    assert row["error"] is None or value == b"\x07"


@settings(max_examples=50)
@given(
    beats=st.lists(heartbeats, max_size=3),
    compression=st.sampled_from(Compression),
    release=st.sampled_from(Release),
)
def test_any_heartbeat_is_what_its_record_says(beats, compression, release):
    all_the_same([serialize(beat, compression, release=release) for beat in beats])


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
@settings(max_examples=50)
@given(heartbeats)
def test_compiled_engine_takes_all_that_writers_make(beat):
    assert ENGINES["compiled"].builder().add(serialize(beat, Compression.PLAIN))


def test_what_our_workers_add_is_skipped():
    beat = ClusterWorkerHeartbeat("t-1-1", {}, 5, 6)
    beat.queries = [QueryActivity("a", 7, 40, 8, 900), QueryActivity("b")]
    beat.jvm_silent_ms = 12_000
    value = serialize(beat, Compression.PLAIN)
    assert all_the_same([value])[0]["error"] is None
    assert all(engine.builder().add(value) for engine in ENGINES.values())


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
@pytest.mark.parametrize("value", [v for v in GOLDEN.values() if v != b"\x07"])
def test_the_compiled_engine_leaves_none_of_storms_alone(value):
    assert ENGINES["compiled"].builder().add(uncompressed(ClusterWorkerHeartbeat, value))


def test_wherever_a_heartbeat_ends_too_early():
    small = spout(5)
    small.emitted = small.transferred = {"600": {"é": 1}}
    whole = heartbeat("t-1-1", {(1, 1): small, (2, 9): bolt({("a", "b"): 1}, 2)}, completed=True)
    data = uncompressed(ClusterWorkerHeartbeat, whole)
    found = all_the_same([data[:end] for end in range(0, len(data), 3)])
    assert all(row["error"] for row in found)
    assert all_the_same([data, data + b"more"])[1]["error"] is None


def test_rows_keep_their_order_whatever_is_between_them():
    good = [heartbeat("t-1-1", {(n, n): spout(n)}, time_secs=n) for n in range(600)]
    values = [None if n % 7 == 3 else b"bad" if n % 7 == 5 else v for n, v in enumerate(good)]
    expected = [None if n % 7 in (3, 5) else n for n in range(600)]
    for name in ENGINES:
        found = rows_of(values, name)
        assert [row["time_secs"] for row in found] == expected
        assert [row["error"] is not None for row in found] == [n % 7 == 5 for n in range(600)]
        assert len(list(decode(values, ENGINES[name]))) > 1
