from types import MappingProxyType, SimpleNamespace

import pytest

from stormkeeper.conf import load
from stormkeeper.errors import BlobStorageError
from stormkeeper.heartbeats.follower import FollowedHeartbeats
from stormkeeper.nimbus.submitted import ReadAhead, Submitted, TopologyCache
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.thrift.nimbus import StormTopology
from stormkeeper.thrift.records import StormBase, TopologyStatus
from stormkeeper.topology.description import of_topology
from support.topologies import make

ID = "wc-1-1700000000"
GRAPH = {"words": ((), 2), "counts": (("words",), 3)}


class Shelf(dict):
    """Code by the ids of its topologies; what is an error is raised. `asked` counts."""

    asked = revision = 0

    def __setitem__(self, storm_id, code):
        super().__setitem__(storm_id, code)
        self.revision += 1

    def __delitem__(self, storm_id):
        super().__delitem__(storm_id)
        self.revision += 1

    def version(self, storm_id):
        found = super().get(storm_id)
        return None if found is None else id(found)

    def get(self, storm_id):
        self.asked += 1
        found = super().get(storm_id)
        if isinstance(found, Exception):
            raise found
        return found


def submitted(graph=GRAPH, **conf):
    conf = {key.replace("__", "."): value for key, value in conf.items()}
    description = of_topology(make(graph)) if graph else None
    return Submitted(StormTopology({}, {}, {}), MappingProxyType(conf), description)


def there(*storm_ids, **ended):
    """What was read of a cluster with these topologies."""
    bases = {id_: StormBase("wc", TopologyStatus.ACTIVE, 1) for id_ in storm_ids}
    return ClusterSnapshot(
        bases=bases,
        assignments={},
        supervisors={},
        nimbuses={},
        ended=ended,
        heartbeats=FollowedHeartbeats(None, {}, 0.0),
        heartbeats_at=0.0,
    )


@pytest.fixture
def conf():
    return load(files=(), overrides=["topology.message.timeout.secs=7"])


def test_topology_conf_overrides_the_clusters(conf):
    own = submitted(topology__worker__memory__mb=333, topology__checkpoint__shared=True)
    known = TopologyCache(Shelf({ID: own}), conf).topologies(there(ID), {})[ID]
    assert (known.facts.memory_mb, known.facts.is_shared, known.wait_secs) == (333.0, True, 7.0)
    plain = TopologyCache(Shelf({ID: submitted()}), conf).topologies(there(ID), {})[ID]
    assert plain.facts.memory_mb == conf["topology.worker.memory.mb"]
    assert not plain.facts.is_shared


def test_queries_executors_and_what_was_told(conf):
    known = TopologyCache(Shelf({ID: submitted()}), conf).topologies(
        there(ID), {ID: "Fully Scheduled"}
    )[ID]
    assert known.facts.queries == ("counts",)
    assert {each.component for each in known.executors} == {"words", "counts"}
    assert (known.facts.text, known.facts.blocked) == ("Fully Scheduled", None)


def test_queries_that_have_ended_are_known(conf):
    ended = {ID: frozenset({"counts"})}
    known = TopologyCache(Shelf({ID: submitted()}), conf).topologies(there(ID, **ended), {})
    assert known[ID].facts.ended == {"counts"}


def test_code_is_read_once_and_forgotten_with_its_topology(conf):
    code = Shelf({ID: submitted()})
    cache = TopologyCache(code, conf)
    for _ in range(3):
        cache.topologies(there(ID), {})
    assert code.asked == 1
    cache.topologies(there(), {})
    cache.topologies(there(ID), {})
    assert code.asked == 2


def test_code_that_has_changed_is_read_again(conf):
    code = Shelf({ID: submitted(topology__worker__memory__mb=333)})
    cache = TopologyCache(code, conf)
    assert cache.topologies(there(ID), {})[ID].facts.memory_mb == 333
    code[ID] = submitted(topology__worker__memory__mb=444)
    assert cache.topologies(there(ID), {})[ID].facts.memory_mb == 444
    del code[ID]
    assert cache.topologies(there(ID), {})[ID].facts.memory_mb == 444, "for a moment"


def test_a_rebalance_changes_the_tasks(conf):
    cache = TopologyCache(Shelf({ID: submitted()}), conf)
    for hints, last in (({}, 5), ({"counts": 1}, 3), ({"counts": 1, "words": 7}, 8)):
        snapshot = there(ID)
        snapshot.bases[ID].component_executors = hints
        executors = cache.topologies(snapshot, {})[ID].executors
        assert max(each.task_end for each in executors) == last


def test_code_that_is_not_here_is_looked_for_again(conf):
    code = Shelf()
    cache = TopologyCache(code, conf)
    assert cache.topologies(there(ID), {}) == {}
    code[ID] = submitted()
    assert list(cache.topologies(there(ID), {})) == [ID]


def test_only_an_unchanged_cluster_gets_the_last_answer(conf):
    code = Shelf({ID: submitted(topology__worker__memory__mb=333)})
    cache, snapshot, texts = TopologyCache(code, conf), there(ID), {}
    found = cache.topologies(snapshot, texts)
    assert cache.topologies(snapshot, texts) is found
    assert cache.topologies(snapshot, {ID: "full"})[ID].facts.text == "full"
    code[ID] = submitted(topology__worker__memory__mb=444)
    assert cache.topologies(snapshot, texts)[ID].facts.memory_mb == 444
    assert cache.topologies(there(), texts) == {}


def test_code_that_could_not_be_read_is_tried_again(conf):
    code = Shelf({ID: BlobStorageError("the disk is away")})
    cache, snapshot, texts = TopologyCache(code, conf), there(ID), {}
    assert cache.topologies(snapshot, texts)[ID].facts.blocked == "the disk is away"
    code.update({ID: submitted()})
    assert cache.topologies(snapshot, texts)[ID].facts.blocked is None


def test_unreadable_or_foreign_code_blocks_a_topology(conf):
    code = Shelf({ID: BlobStorageError("the disk is gone"), "java-2-1": submitted(graph=None)})
    known = TopologyCache(code, conf).topologies(there(ID, "java-2-1"), {})
    assert known[ID].facts.blocked == "the disk is gone"
    assert "none of ours" in known["java-2-1"].facts.blocked


@pytest.mark.parametrize("value", ["much", [], float("inf"), float("nan"), -1])
def test_invalid_conf_blocks_no_other_topology(conf, value):
    """Anybody may do that who reaches Nimbus."""
    code = Shelf({ID: submitted(topology__worker__memory__mb=value), "good-2-1": submitted()})
    known = TopologyCache(code, conf).topologies(there(ID, "good-2-1"), {})
    assert "topology.worker.memory.mb that is none" in known[ID].facts.blocked
    assert known["good-2-1"].facts.blocked is None


def test_what_was_read_ahead_is_not_read_again(conf):
    code, late = Shelf({ID: submitted()}), "late-1-1700000000"
    cache, snapshot = TopologyCache(code, conf), there(ID, late)
    ahead = ReadAhead(lambda: SimpleNamespace(latest=lambda: snapshot), cache)
    ahead.read()
    asked = code.asked
    cache.topologies(there(ID), {})
    assert code.asked == asked
    code[late] = submitted()
    ahead.read()
    assert code.asked == asked + 1, "it is looked for until it is here"
    del code[ID], code[late]
    cache.topologies(snapshot, {})
    ahead.read()
    assert code.asked == asked + 1, "for a moment"
