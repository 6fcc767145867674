"""What is read of a topology's code, and what is remembered of it."""

import json

import pytest

from stormkeeper.blobs import keys
from stormkeeper.errors import CodeError, SerializationError
from stormkeeper.nimbus import submitted
from stormkeeper.nimbus.service import topology_checks
from stormkeeper.nimbus.submitted import (
    MOST_TASKS,
    SchedulingCode,
    SubmittedCode,
    decode_conf,
    encode_conf,
)
from stormkeeper.thrift.serialization import serialize
from support.code import Cluster
from support.nimbus_service import describe, package, topology_of

WC = "wc-1-1700000000"


@pytest.fixture
def store(tmp_path):
    cluster = Cluster(tmp_path / "cluster")
    yield cluster.start(1).code
    cluster.close()


def parts(folder, graph=None, jar=None, **conf):
    described = describe("wc", graph)
    return {
        "stormjar.jar": package(folder, described) if jar is None else jar,
        "stormcode.ser": serialize(topology_checks.normalised(topology_of(described), described)),
        "stormconf.ser": encode_conf(conf),
    }


def replace_blob(code, key, data):
    session = code.uploads.begin_update(key)
    code.uploads.chunk(session, data)
    code.uploads.finish(session)


def test_a_topology_is_read_out_of_its_three_blobs(store, tmp_path):
    code = SubmittedCode(store.store)
    assert code.get(WC) is None
    store.upload(WC, parts(tmp_path, own=[1]))
    found = code.get(WC)
    assert found.conf == {"own": [1]}
    assert found.queries == ("count", "raw")
    assert found.executors == describe("wc").executors
    assert sorted(found.tasks) == [1, 2, 3, 4, 5, 6]
    assert code.get(WC) is found, "it is remembered"
    store.cleanup(WC)
    assert code.get(WC) is None


def test_scheduling_reads_all_but_the_components(store, tmp_path):
    store.upload(WC, parts(tmp_path, own=[1]))
    whole, found = SubmittedCode(store.store).get(WC), SchedulingCode(store.store).get(WC)
    assert (found.queries, found.executors) == (whole.queries, whole.executors)
    assert (found.conf, found.spread({"words": 5}).executors) == (
        whole.conf,
        whole.spread({"words": 5}).executors,
    )
    replace_blob(store, keys.of_topology(WC)[2], encode_conf({"own": 2}))
    assert SchedulingCode(store.store).get(WC).conf == {"own": 2}


def test_scheduling_refuses_too_many_tasks(store, tmp_path):
    wide = {"a": ((), 1), "b": (("a",), MOST_TASKS)}
    store.upload(WC, parts(tmp_path, wide))
    with pytest.raises(CodeError, match="more than 100,000 tasks"):
        SchedulingCode(store.store).get(WC)


def test_scheduling_places_nothing_of_a_java_topology(store, tmp_path):
    store.upload(WC, parts(tmp_path, jar=b"PK a jar"))
    assert SchedulingCode(store.store).get(WC).queries == ()


def test_a_new_version_is_read_anew(store, tmp_path):
    store.upload(WC, parts(tmp_path, own=1))
    code = SubmittedCode(store.store)
    assert code.get(WC).conf == {"own": 1}
    replace_blob(store, keys.of_topology(WC)[2], encode_conf({"own": 2}))
    assert code.get(WC).conf == {"own": 2}


def test_after_a_rebalance_it_has_other_tasks(store, tmp_path):
    store.upload(WC, parts(tmp_path))
    found = SubmittedCode(store.store).get(WC)
    assert found.spread({"words": 2}) is found, "as it was submitted"
    spread = found.spread({"words": 5})
    assert spread.components["words"].num_tasks == 5
    assert len(spread.tasks) == len(found.tasks) + 3
    assert found.components["words"].num_tasks == 2


def test_a_java_topology_has_components_and_nothing_to_run(store, tmp_path):
    store.upload(WC, parts(tmp_path, jar=b"PK a jar"))
    found = SubmittedCode(store.store).get(WC)
    assert found.description is None
    assert (found.queries, found.executors) == ((), ())
    assert found.components["lines"].num_tasks == 2


@pytest.mark.parametrize("part", [1, 2])
def test_code_that_is_damaged_is_said_to_be_so(store, tmp_path, part):
    store.upload(WC, parts(tmp_path))
    replace_blob(store, keys.of_topology(WC)[part], b"\x1f\x8bnot gzip")
    with pytest.raises(CodeError, match=f"the code of {WC} is damaged"):
        SubmittedCode(store.store).get(WC)


def test_a_description_is_read_again_once_whole(store, tmp_path):
    """A damaged package has none, which must not last."""
    store.upload(WC, parts(tmp_path))
    code, key = SubmittedCode(store.store), keys.of_topology(WC)[0]
    path = store.store.folder / "data" / store.store.get(key).sha256
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    assert code._description(key) == (None, 0)
    path.write_bytes(whole)
    found, _ = code._description(key)
    assert found is not None
    assert code._description(key)[0] is found


def test_bytes_that_the_disk_has_changed_count_as_lost(store, tmp_path):
    told = []
    store.sync.on_loss = lambda: told.append(True)
    store.upload(WC, parts(tmp_path))
    key = keys.of_topology(WC)[2]
    path = store.store.folder / "data" / store.store.get(key).sha256
    path.write_bytes(bytes(path.stat().st_size))
    assert SubmittedCode(store.store).get(WC) is None
    assert store.store.get(key) is None
    assert told


def test_too_many_tasks_in_a_package_are_refused(store, tmp_path):
    wide = {"a": ((), 1), "b": (("a",), MOST_TASKS)}
    store.upload(WC, parts(tmp_path, wide))
    with pytest.raises(CodeError, match="more than 100,000 tasks"):
        SubmittedCode(store.store).get(WC)


def test_too_many_tasks_in_a_java_topology_are_refused(store, tmp_path):
    topology = topology_of(describe("wc"))
    topology.bolts["count"].common.parallelism_hint = 2**31 - 1
    given = {**parts(tmp_path, jar=b"PK a jar"), "stormcode.ser": serialize(topology)}
    store.upload(WC, given)
    with pytest.raises(CodeError, match="more than 100,000 tasks"):
        SubmittedCode(store.store).get(WC)


def test_only_so_much_is_remembered(store, tmp_path, monkeypatch):
    code = SubmittedCode(store.store)
    given = parts(tmp_path)
    ids = [f"wc-{number}-1700000000" for number in (1, 2, 3)]
    for storm_id in ids:
        store.upload(storm_id, given)
    first, second = code.get(ids[0]), code.get(ids[1])
    of_two = sum(each.cost for each in code._read.values())
    monkeypatch.setattr(submitted, "_REMEMBERED", of_two)
    assert code.get(ids[0]) is first
    code.get(ids[2])
    assert code.get(ids[0]) is first, "it was asked for last"
    assert code.get(ids[1]) is not second


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\x1f\x8b", b"7"])
def test_what_is_no_conf_is_said_to_be_none(data):
    with pytest.raises(SerializationError):
        decode_conf(data)


def test_a_conf_reads_as_storm_writes_it():
    assert decode_conf(encode_conf({"a": [None, "ü"]})) == {"a": [None, "ü"]}
    assert decode_conf(json.dumps({"a": 1}).encode()) == {"a": 1}
