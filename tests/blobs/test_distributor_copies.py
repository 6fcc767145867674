import threading

import pytest

from stormkeeper import conf
from stormkeeper.blobs import distributor, keys
from stormkeeper.errors import StateClosedError
from stormkeeper.state.storm.blob_records import BlobEntry
from stormkeeper.thrift.records import NimbusSummary
from support.code import code_of
from support.waiting import until

WC = "wc-1-1700000000"


def configured(count, longest):
    return conf.defaults().with_values(
        {
            "topology.min.replication.count": count,
            "topology.max.replication.wait.time.sec": longest,
        }
    )


@pytest.mark.parametrize(
    ("count", "nimbuses", "wanted"),
    [(None, 0, 1), (None, 1, 1), (None, 2, 2), (None, 5, 2), (0, 5, 0), (1, 5, 1), (3, 1, 3)],
)
def test_how_many_copies_are_wanted(count, nimbuses, wanted):
    assert distributor.wanted_copies(count, nimbuses) == wanted


def test_only_who_has_all_blobs_has_a_copy():
    entries = {
        "a": BlobEntry(1, 1, None, (), ("x", "y", "z")),
        "b": BlobEntry(1, 1, None, (), ("x", "z")),
        "c": BlobEntry(1, 1, None, (), ("y", "z")),
    }
    assert distributor.complete_copies("abc", entries) == 1
    assert distributor.complete_copies("ab", entries) == 2
    assert distributor.complete_copies("abd", entries) == 0
    assert distributor.complete_copies("", entries) == 0


def test_the_wait_ends_when_the_other_nimbus_has_all(live):
    one, two = live.start(1), live.start(2)
    one.code.upload(WC, code_of(WC))
    seen = []
    waiting = threading.Thread(
        target=lambda: seen.append(distributor.await_copies(one.storm, WC, configured(None, 60)))
    )
    waiting.start()
    two.code.start()
    waiting.join(60)
    assert seen == [(2, 2)]
    assert seen[0].is_enough


def test_a_nimbus_whose_disk_fails_is_not_waited_for(live):
    one, two = live.start(1), live.start(2)
    one.code.upload(WC, code_of(WC))
    seen = []
    waiting = threading.Thread(
        target=lambda: seen.append(distributor.await_copies(one.storm, WC, configured(None, 600)))
    )
    waiting.start()
    assert distributor.count_copies(one.storm, WC, None) == (1, 2)
    two.storm.add_nimbus_host(NimbusSummary(*two.id[:2], 0, False, "1", disk_fault="it is full"))
    waiting.join(60)
    assert seen == [(1, 1)]


def test_one_nimbus_waits_for_nobody(live):
    one = live.start(1)
    one.code.upload(WC, code_of(WC))
    assert distributor.await_copies(one.storm, WC, configured(None, 60)) == (1, 1)


def test_the_wait_ends_at_its_deadline_and_says_what_there_is(live):
    one = live.start(1)
    one.code.upload(WC, code_of(WC))
    found = distributor.await_copies(one.storm, WC, configured(2, 0.05))
    assert found == (1, 2)
    assert not found.is_enough


def test_who_goes_meanwhile_is_not_waited_for(live):
    one, two = live.start(1), live.start(2)
    one.code.upload(WC, code_of(WC))
    seen = []
    waiting = threading.Thread(
        target=lambda: seen.append(distributor.await_copies(one.storm, WC, configured(None, -1)))
    )
    waiting.start()
    live.stop(two)
    waiting.join(60)
    assert seen == [(1, 1)]


def test_a_wait_without_end_ends_with_the_session(live):
    one = live.start(1)
    one.code.upload(WC, code_of(WC))
    ended = []

    def wait():
        try:
            distributor.await_copies(one.storm, WC, configured(2, 0))
        except StateClosedError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: any(stream for stream in one.storm._streams))
    one.storm.disconnect()
    waiting.join(60)
    assert len(ended) == 1


def test_a_copy_of_an_old_version_does_not_count(live):
    one, two = live.start(1), live.start(2)
    one.code.upload(WC, code_of(WC))
    two.code.sync.run_once()
    assert distributor.count_copies(one.storm, WC, None) == (2, 2)
    update = one.code.uploads.begin_update(keys.of_topology(WC)[0])
    one.code.uploads.finish(update)
    assert distributor.count_copies(one.storm, WC, None) == (1, 2)
    two.code.sync.run_once()
    assert distributor.count_copies(one.storm, WC, None) == (2, 2)
