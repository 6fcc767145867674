"""The life of checkpoints after a topology's end, with real masters and machines in this process.

The workers are stand-ins, which make no checkpoint: a test makes it.
"""

import json
from contextlib import closing

import pytest

from stormkeeper.nimbus.cleanup import CheckpointRetention
from stormkeeper.supervisor import slot_model as times
from stormkeeper.thrift.nimbus import InvalidTopologyException
from stormkeeper.thrift.records import KillOptions
from support.inner_cluster import GRAPH, QUERY, InnerCluster
from support.waiting import until


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(times, "WORKER_END_SECS", 0.5)
    with closing(InnerCluster(tmp_path)) as cluster:
        yield cluster


@pytest.fixture
def master(cluster):
    return cluster.master()


@pytest.fixture
def submit(cluster, master):
    """Submits a topology of one query, and returns its id."""

    def submit(name="wc", origin=None, **conf):
        conf = cluster.conf(**conf)
        if origin is not None:
            conf = json.dumps(json.loads(conf) | {"topology.checkpoint.from": origin})
        return master.submit(name, GRAPH, conf)

    return submit


@pytest.fixture
def kill(master):
    def kill(storm_id, **options):
        name = storm_id.rsplit("-", 2)[0]
        master.handler.killTopologyWithOpts(name, KillOptions(wait_secs=0, **options))
        until(lambda: master.storm.storm_base(storm_id) is None)

    return kill


def checkpoint(machine, storm_id):
    """Make the checkpoint that a worker of a topology would have made there."""
    place = machine.directories.supervisor.parent / "checkpoints" / storm_id / QUERY
    place.mkdir(parents=True)
    return place


def test_topology_continues_from_kept_checkpoints(cluster, master, submit, kill):
    here = cluster.machine()
    old = submit()
    first = master.assigned(old)
    here.started(old, 6700)
    with pytest.raises(InvalidTopologyException, match="wc is ACTIVE"):
        submit("new", "wc")
    kill(old)
    kept = master.storm.checkpoints(old).record
    assert (kept.nodes, kept.shared, kept.remove_on) == ({QUERY: here.id}, False, None)

    # It waits for that machine, and for no other.
    until(lambda: here.noted(6700) is None)
    here.stop()
    there = cluster.machine(6700, 6701)
    new = submit("new", "wc")
    conf = json.loads(master.handler.getTopologyConf(new))
    assert conf["topology.checkpoint.from"] == old
    assert conf["topology.checkpoint.queries"] == [QUERY]
    until(lambda: "its checkpoint is there" in master.scheduler.sched_status().get(new, ""))
    here.start()
    second = master.assigned(new, here.id)
    assert (second.claim.epoch, second.claim.counter) > (first.claim.epoch, first.claim.counter)
    with pytest.raises(InvalidTopologyException, match="new goes on from the checkpoints"):
        submit("third", old)
    kill(new)
    assert [*master.storm.all_checkpoints()] == [old]
    third = submit("third", "new", topology_workers=1)
    assert master.assigned(third, here.id)
    assert there.noted(6700) is None


def test_a_checkpoint_whose_machine_is_lost_is_given_up(cluster, master, submit, kill):
    here = cluster.machine()
    old = submit()
    here.started(old, 6700)
    kill(old)
    until(lambda: here.noted(6700) is None)
    lost = {"topology_checkpoint_abandon": [QUERY]}
    with pytest.raises(
        InvalidTopologyException, match=rf"of {QUERY} is on .*{here.id}.* is present"
    ):
        submit("new", "wc", **lost)
    with pytest.raises(InvalidTopologyException, match=r"give topology\.checkpoint\.from, too"):
        submit("new", **lost)
    here.stop()
    there = cluster.machine()
    waiting = submit("new", "wc")
    name = f"{master.storm.storm_base(waiting).checkpoints.hosts[here.id]} ({here.id[:8]})"
    until(lambda: f"the machine {name}: " in master.scheduler.sched_status().get(waiting, ""))
    kill(waiting)

    new = submit("again", "new", **lost)
    assert master.assigned(new, there.id)
    conf = json.loads(master.handler.getTopologyConf(new))
    assert conf["topology.checkpoint.from"] == old
    assert conf["topology.checkpoint.queries"] == []
    until(lambda: master.storm.storm_base(new).checkpoints.nodes == {QUERY: there.id})


def test_a_purge_removes_checkpoints_when_the_worker_has_stopped(cluster, master, submit, kill):
    here = cluster.machine()
    storm_id = submit(stand_in_stubborn=True)
    here.started(storm_id, 6700)
    place = checkpoint(here, storm_id)
    until(lambda: here.noted(6700))
    kill(storm_id, purge=True)
    until(lambda: not place.exists())
    assert here.noted(6700) is None
    until(lambda: master.storm.all_checkpoints() == {})
    with pytest.raises(InvalidTopologyException, match="there are no checkpoints of wc"):
        submit("new", "wc")


def test_without_a_purge_they_stay(cluster, submit, kill):
    here = cluster.machine()
    storm_id = submit()
    here.started(storm_id, 6700)
    place = checkpoint(here, storm_id)
    kill(storm_id)
    until(lambda: here.workers() == [])
    here.stop()
    here.start()
    until(lambda: not here.directories.code(storm_id).exists())
    assert place.exists()


def test_returning_machine_removes_its_part(cluster, master, submit, kill):
    here = cluster.machine()
    storm_id = submit()
    here.started(storm_id, 6700)
    place = checkpoint(here, storm_id)
    kill(storm_id)
    until(lambda: here.noted(6700) is None)
    here.stop()

    def later():
        return cluster.clock() + 3600

    ups = iter([0.0, 3600.0])
    retention = CheckpointRetention(tuple, kept_secs=3600, clock=later, monotonic=lambda: next(ups))
    for _ in range(2):
        retention.remove_expired(master.leader)
    assert master.storm.checkpoints(storm_id).record.remove_on == [here.id]
    assert place.exists()
    here.start()
    until(lambda: not place.exists())
    until(lambda: master.storm.all_checkpoints() == {})
