"""Where checkpoints are, who may go on from them, and when they go."""

import pytest

from stormkeeper.errors import CheckpointsError
from stormkeeper.nimbus import checkpoints
from stormkeeper.thrift.records import Checkpoints, StormBase, TopologyStatus
from support.clusters import launch

OLD, NEW = "wc-1-1700000000", "wc-2-1700000100"
NOW_MS, DAY = 1_700_000_000_000, 86_400


def record(storm_id=OLD, folder=None, **fields):
    """What is kept of the checkpoints of a topology that is gone."""
    fields = {"nodes": {"q": "a"}, "ended_ms": NOW_MS, "shared": False, **fields}
    return Checkpoints(folder or storm_id, storm_id, storm_id.rsplit("-", 2)[0], **fields)


def base(storm_id, status=TopologyStatus.ACTIVE, has=None):
    return {storm_id: StormBase(storm_id.rsplit("-", 2)[0], status, 1, checkpoints=has)}


def find(wanted, *records, own=(), bases=None):
    return checkpoints.find(wanted, dict(own), {one.folder: one for one in records}, bases or {})


def test_continues_from_an_id_or_the_last_of_a_name():
    first, last, other = record(), record(NEW, ended_ms=NOW_MS + 1), record("b-3-1700000000")
    assert find(OLD, first, last, other) is first
    assert find("wc", first, last, other) is last
    assert find("b", first, last, other) is other


def test_the_second_in_a_row_has_the_first_ones_folder():
    new = checkpoints.continued(record(root="/shared", shared=True), NEW, "wc")
    assert (new.folder, new.storm_id, new.ended_ms) == (OLD, NEW, None)
    conf = checkpoints.conf_of({checkpoints.FROM: "wc", checkpoints.DIR: "/other"}, new)
    assert conf == {
        checkpoints.FROM: OLD,
        checkpoints.QUERIES: ["q"],
        checkpoints.DIR: "/shared",
        checkpoints.SHARED: True,
    }
    again = checkpoints.ended(new, NOW_MS, [], purge=False)
    assert find("wc", again).folder == OLD
    with pytest.raises(CheckpointsError, match=f"^{NEW} went on from the checkpoints of {OLD}: go"):
        find(OLD, again)


def test_what_no_topology_named_keeps_its_place_on_each_machine():
    conf = checkpoints.conf_of({checkpoints.DIR: "/nimbuses"}, record())
    assert checkpoints.DIR not in conf


def test_who_goes_on_from_nothing_says_so():
    """Whatever a cluster's configuration or a script says that was overruled."""
    conf = checkpoints.conf_of({checkpoints.FROM: "x", "a": 1}, None)
    assert conf == {checkpoints.FROM: None, checkpoints.QUERIES: None, "a": 1}


@pytest.mark.parametrize(
    ("wanted", "bases", "why"),
    [
        ("wc", base(OLD), r"^wc is ACTIVE, .*: end it with `storm kill wc`$"),
        (OLD, base(OLD, TopologyStatus.INACTIVE), "is INACTIVE"),
        (OLD, base(OLD, TopologyStatus.KILLED), "is being killed: try again when it is gone$"),
        (OLD, base("x-9-17", has=record()), "^x goes on from the checkpoints of wc-1-1700000000"),
        ("no", {}, "no checkpoints of no: .* There are some of: wc$"),
    ],
)
def test_who_cannot_be_gone_on_from(wanted, bases, why):
    with pytest.raises(CheckpointsError, match=why):
        find(wanted, record(), bases=bases)


def test_what_is_being_removed_cannot_be_gone_on_from():
    with pytest.raises(CheckpointsError, match="are being removed"):
        find("wc", record(remove_on=["a"]))


@pytest.mark.parametrize(
    "own", [{checkpoints.DIR: "/elsewhere"}, {checkpoints.SHARED: True}], ids=["dir", "shared"]
)
def test_checkpoints_stay_where_they_are(own):
    with pytest.raises(CheckpointsError, match=r"stay where they are: leave topology.checkpoint"):
        find("wc", record(root="/here"), own=own)
    same = {checkpoints.DIR: "/here", checkpoints.SHARED: False}
    assert find("wc", record(root="/here"), own=same)


def test_checkpoints_of_machines_that_are_lost_are_given_up():
    kept = record(nodes={"q": "a", "r": "b"}, hosts={"a": "m1", "b": "m2"})
    assert checkpoints.abandoned(kept, ["q"], ["b"]).nodes == {"r": "b"}
    assert kept.nodes == {"q": "a", "r": "b"}
    assert checkpoints.abandoned(kept, [], ["a"]) == kept


@pytest.mark.parametrize(
    ("query", "fields", "why"),
    [
        ("x", {}, f"^{OLD} has no checkpoint of x to abandon, but of: q, r$"),
        ("q", {"shared": True}, "is shared, and not lost with a machine"),
        ("r", {"hosts": {"b": "m2"}}, r"of r is on m2 \(supervisor b\), which is present: do not"),
        ("r", {}, "is on the machine of supervisor b, which is present"),
    ],
)
def test_no_checkpoint_is_given_up_that_can_be_reached(query, fields, why):
    kept = record(nodes={"q": "a", "r": "b"}, **fields)
    with pytest.raises(CheckpointsError, match=why):
        checkpoints.abandoned(kept, [query], ["b"])


def test_hosts_of_lost_machines_stay_known():
    kept = checkpoints.placed(record(nodes={}), [launch("a:6700", "q")], {"a": "m1", "c": "m3"})
    assert kept.hosts == {"a": "m1"}
    assert checkpoints.placed(kept, [launch("a:6700", "q")], {"a": "m1"}) is kept
    moved = checkpoints.placed(kept, [launch("b:6700", "q")], {"b": "m2"})
    assert (moved.nodes, moved.hosts) == ({"q": "b"}, {"b": "m2"})
    assert checkpoints.continued(moved, NEW, "wc").hosts == {"b": "m2"}


def test_it_is_known_where_queries_were_launched_last():
    kept = record(nodes={"q": "a", "r": "a"})
    assert checkpoints.placed(kept, [launch("a:6700", "q")]) is kept
    moved = checkpoints.placed(kept, [launch("b:6700", "q", "s")])
    assert moved.nodes == {"q": "b", "r": "a", "s": "b"}
    assert kept.nodes == {"q": "a", "r": "a"}


def test_what_never_began_leaves_nothing():
    assert checkpoints.ended(record(nodes={}), NOW_MS, ["a"], purge=True) is None


@pytest.mark.parametrize(
    ("shared", "there", "by"),
    [
        (False, ["a", "c"], ["a", "b"]),  # each on its own machine, also when it comes back
        (True, ["a", "c"], ["a"]),
        (True, ["d", "c"], ["c"]),  # any
        (True, [], ["a", "b"]),
    ],
)
def test_a_purge_is_for_the_machines_that_have_them(shared, there, by):
    kept = record(nodes={"q": "b", "r": "a"}, shared=shared)
    assert checkpoints.ended(kept, NOW_MS, there, purge=True).remove_on == by
    assert checkpoints.ended(kept, NOW_MS, there, purge=False).remove_on is None


def due(kept, bases=None, days=8, retention=7 * DAY, there=("a",)):
    return checkpoints.due(kept, bases or {}, there, NOW_MS + days * DAY * 1000, retention)


def test_checkpoints_are_removed_when_their_time_is_over():
    assert due(record()).remove_on == ["a"]
    assert due(record(), days=6) is None
    assert due(record(), retention=None) is None


def test_checkpoints_that_a_topology_has_stay_for_ever():
    using = base(NEW, has=checkpoints.continued(record(), NEW, "wc"))
    assert due(record(), using) is None


def test_another_supervisor_removes_shared_checkpoints():
    waiting = record(shared=True, remove_on=["a"])
    assert due(waiting) is None
    assert due(waiting, there=("b", "c")).remove_on == ["b"]
    assert due(waiting, there=()) is None
    assert due(record(remove_on=["a"]), there=("b",)) is None


@pytest.mark.parametrize(
    ("root", "is_removable"),
    [
        (None, True),
        ("/shared", True),
        ("file:///shared", True),
        ("~/shared", True),
        ("relative", False),
        ("hdfs://host/a", False),
        ("s3a://bucket", False),
    ],
)
def test_supervisors_remove_from_disks(root, is_removable):
    assert checkpoints.is_removable(record(root=root)) == is_removable
