from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.blobs import keys
from stormkeeper.blobs.sync_plan import BlobFetch, BlobSnapshot, Missing, missing, plan
from stormkeeper.state.storm.blob_records import BlobEntry, BlobRecord

WC = "wc-1-1700000000"
JAR, CODE, CONF = keys.of_topology(WC)


def record(version=1, born=1, content="a", size=3):
    return BlobRecord(version, content * 64, size, 0, born)


def entry(newest=None, *, held=(), alive=(), number=None, born=1):
    number = number or (newest.version if newest else 1)
    return BlobEntry(number, born, newest, tuple(sorted({*held, *alive})), tuple(alive))


def snapshot(local=(), entries=(), **rest):
    return BlobSnapshot(
        nimbus="me", local=dict(local), entries=dict(entries), **{"topologies": (), **rest}
    )


def test_there_is_nothing_to_do_where_all_is_well():
    well = snapshot({"a": record()}, {"a": entry(record(), alive=["me", "you"])})
    assert plan(well) == plan(snapshot())


def test_what_others_have_is_fetched_from_them():
    found = plan(snapshot({}, {"a": entry(record(), alive=["him", "you"], held=["who"])}))
    assert found.fetch == (BlobFetch("a", record(), ("him", "you")),)


def test_a_newer_version_is_fetched():
    entries = {"a": entry(record(2), alive=["you"])}
    assert plan(snapshot({"a": record(1)}, entries)).fetch == (BlobFetch("a", record(2), ("you",)),)


def test_other_bytes_in_the_same_version_are_fetched():
    entries = {"a": entry(record(content="b"), alive=["you"])}
    assert [f.key for f in plan(snapshot({"a": record()}, entries)).fetch] == ["a"]


def test_who_failed_is_left_alone_for_all_blobs_or_for_one():
    entries = {name: entry(record(), alive=["him", "you"]) for name in "ab"}
    found = plan(snapshot({}, entries, resting={"him"}, refused={("you", "a")}))
    assert found.fetch == (BlobFetch("b", record(), ("you",)),)
    assert found.awaited == (), "somebody has it, and is asked again by and by"


def test_code_of_topologies_is_fetched_first_the_smallest_first():
    entries = {
        JAR: entry(record(size=9), alive=["you"]),
        CODE: entry(record(size=5), alive=["you"]),
        CONF: entry(record(size=7), alive=["you"]),
        "a": entry(record(size=1), alive=["you"]),
    }
    found = plan(snapshot({}, entries, topologies=[WC]))
    assert [fetch.key for fetch in found.fetch] == [CODE, CONF, JAR, "a"]


def test_a_stored_version_is_announced_after_a_restart():
    entries = {"a": entry(record(1), held=["me"], number=2), "b": entry(number=1)}
    found = plan(snapshot({"a": record(2), "b": record(1)}, entries))
    assert (found.announce, found.count, found.fetch) == (("a", "b"), (), ())


def test_a_version_that_is_counted_and_not_there_is_awaited():
    entries = {"a": entry(record(1), alive=["me", "you"], number=2)}
    found = plan(snapshot({"a": record(1)}, entries))
    assert (found.awaited, found.announce, found.fetch) == (("a",), (), ())
    found = plan(snapshot({}, entries))
    assert (found.awaited, [fetch.key for fetch in found.fetch]) == (("a",), ["a"])


def test_a_session_that_is_new_announces_what_is_there():
    assert plan(snapshot({"a": record()}, {"a": entry(record(), held=["me"])})).announce == ("a",)


@pytest.mark.parametrize("newest", [None, record(1, born=9, content="b")])
def test_a_blob_of_an_earlier_life_of_its_key_never_counts(newest):
    """The key was deleted and made again while this Nimbus was away."""
    entries = {"a": entry(newest, alive=["you"] if newest else [], born=9)}
    found = plan(snapshot({"a": record(3, born=1)}, entries, now=1000.0))
    assert found.announce == ()
    assert [fetch.record for fetch in found.fetch] == ([newest] if newest else [])
    assert found.delete == ()


def test_code_that_zookeeper_has_lost_is_counted_again():
    local = dict.fromkeys((JAR, CODE, CONF), record(2))
    entries = {JAR: entry(record(2), alive=["me"]), CODE: entry(born=9, number=1)}
    seen = snapshot(local, entries, topologies=[WC])
    found = plan(seen)
    assert found.announce == tuple(sorted((CODE, CONF)))
    assert found.count == found.announce
    assert missing(seen) == {}


def test_what_is_said_to_be_here_and_is_not_is_withdrawn():
    entries = {
        "a": entry(record(), alive=["me"]),
        "b": entry(record(2), alive=["me", "you"]),
    }
    found = plan(snapshot({"b": record(1)}, entries))
    assert found.withdraw == ("a", "b")
    assert found.awaited == ("a",)
    assert [fetch.sources for fetch in found.fetch] == [("you",)]


def test_what_nobody_has_yet_is_awaited():
    entries = {"a": entry(), "b": entry(record(), held=["you"])}
    found = plan(snapshot({}, entries, topologies=[WC]))
    assert found.awaited == tuple(sorted(("a", "b", JAR, CODE, CONF)))


def test_what_is_missing_of_a_topology_and_who_had_it_last():
    entries = {
        JAR: entry(record(2), held=["gone", "lost"]),
        CODE: entry(record(), alive=["you"], held=["gone"]),
        CONF: entry(record(), alive=["me"]),
    }
    local = {JAR: record(1), CONF: record()}
    seen = snapshot(local, entries, topologies=[WC])
    assert missing(seen) == {WC: Missing((JAR, CODE), (JAR,), ("gone", "lost"))}
    nothing = snapshot({}, {}, topologies=[WC])
    assert missing(nothing) == {WC: Missing((JAR, CODE, CONF), (JAR, CODE, CONF), ())}


def test_code_of_a_killed_topology_is_deleted_after_the_delay():
    local, entries = {JAR: record()}, {JAR: entry(record(), alive=["me"])}
    found = plan(snapshot(local, entries, topologies=[WC], delay_secs=300.0, now=100.0))
    assert found.unneeded_since == {}
    gone = snapshot(local, entries, delay_secs=300.0, now=200.0)
    found = plan(gone)
    assert found.unneeded_since == {JAR: 200.0}
    assert (found.forget, found.delete) == ((), ())
    later = replace(gone, unneeded_since=found.unneeded_since, now=499.0)
    assert plan(later).forget == ()
    later = replace(later, now=500.0)
    assert (plan(later).forget, plan(later).delete) == ((JAR,), ())
    forgotten = replace(later, entries={})
    assert (plan(forgotten).forget, plan(forgotten).delete) == ((), (JAR,))


def test_a_topology_that_is_being_submitted_keeps_its_code():
    entries = {JAR: entry(record(), alive=["me"])}
    found = plan(snapshot({JAR: record()}, entries, submitted=[WC], now=1e9))
    assert (found.forget, found.delete, found.unneeded_since) == ((), (), {})


def test_a_users_blob_is_kept_until_it_is_deleted():
    there = snapshot({"a": record()}, {"a": entry(record(), alive=["me"])}, now=1e9)
    assert plan(there).unneeded_since == {}
    deleted = replace(there, entries={}, delay_secs=300.0)
    assert plan(deleted).unneeded_since == {"a": 1e9}
    late = replace(deleted, unneeded_since={"a": 1e9}, now=1e9 + 300)
    assert plan(late).delete == ("a",)


NAMES = st.sampled_from(["me", "you", "him"])
RECORDS = st.builds(record, st.integers(1, 3), st.integers(1, 2), st.sampled_from("ab"))
BLOBS = st.sampled_from([*keys.of_topology(WC), "a"])
ENTRIES = st.builds(
    entry,
    st.none() | RECORDS,
    held=st.lists(NAMES, max_size=2),
    alive=st.lists(NAMES, max_size=3, unique=True),
    born=st.integers(1, 2),
).map(lambda each: each if each.record else each._replace(held=(), alive=()))
SNAPSHOTS = st.builds(
    BlobSnapshot,
    nimbus=st.just("me"),
    topologies=st.sampled_from([(), (WC,)]),
    local=st.dictionaries(BLOBS, RECORDS),
    entries=st.dictionaries(BLOBS, ENTRIES),
    submitted=st.sampled_from([(), (WC,)]),
    resting=st.sets(NAMES, max_size=1),
    unneeded_since=st.dictionaries(BLOBS, st.just(0.0)),
    now=st.sampled_from([0.0, 299.0, 300.0]),
    delay_secs=st.just(300.0),
)


@given(SNAPSHOTS)
def test_what_always_holds(seen):
    found = plan(seen)
    needed = {key for name in seen.topologies for key in keys.of_topology(name)}
    gone = {*found.delete, *found.forget}
    assert not gone & needed
    assert not gone & {key for name in seen.submitted for key in keys.of_topology(name)}
    for key in gone:
        assert seen.unneeded_since.get(key, seen.now) + 300 <= seen.now
    fetched = {fetch.key for fetch in found.fetch}
    for fetch in found.fetch:
        assert fetch.sources
        assert "me" not in fetch.sources
        assert set(fetch.sources) <= set(seen.entries[fetch.key].alive) - set(seen.resting)
        assert seen.local.get(fetch.key) != fetch.record
    assert set(found.announce) <= seen.local.keys()
    assert not fetched & set(found.announce)
    assert len(found.awaited) == len(set(found.awaited))
    assert not set(found.announce) & set(found.withdraw)
    # What a topology needs is here, on its way, awaited, or with somebody who is left alone.
    for topology in missing(seen).values():
        for key in topology.keys:
            left_alone = (
                set(seen.entries[key].alive) & set(seen.resting) if key in seen.entries else ()
            )
            assert key in fetched or key in found.awaited or left_alone
        assert set(topology.lost) <= set(topology.keys)
    assert plan(seen) == found


@given(SNAPSHOTS)
def test_only_lost_blobs_are_missing_after_a_complete_round(seen):
    """Its blobs after a round are those that it had and those that it fetched."""
    found = plan(replace(seen, resting=()))
    local = {**seen.local, **{fetch.key: fetch.record for fetch in found.fetch}}
    after = replace(seen, resting=(), local=local)
    assert plan(after).fetch == ()
    for name, topology in missing(after).items():
        assert topology.keys == topology.lost, name
