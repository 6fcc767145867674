"""Two or three Nimbuses with real files on a store in memory, and what the network does to them."""

import logging
import shutil

import pytest

from stormkeeper import paths
from stormkeeper.blobs import distributor, keys
from stormkeeper.blobs.peers import FetchLimits
from stormkeeper.blobs.sync import LONGEST_REST_SECS, PeerBackoff
from stormkeeper.errors import BlobNotFoundError, BlobStorageError, StateUnavailableError
from support.code import Cluster, activate, code_of, cut_after, damages, hangs
from support.disks import files, room_for
from support.waiting import until

WC = "wc-1-1700000000"
OTHER = "other-2-1700000000"


def whole(nimbus, topology_id=WC):
    """Whether a Nimbus has a topology's code, byte for byte."""
    code = code_of(topology_id)
    for key, part in zip(keys.of_topology(topology_id), keys.PARTS, strict=True):
        if nimbus.code.store.get(key) is None:
            return False
        _, file = nimbus.code.store.open(key)
        with file:
            assert file.read() == code[part]
    return True


@pytest.fixture
def one(cluster):
    return cluster.start(1)


@pytest.fixture
def two(cluster):
    return cluster.start(2)


def holders(nimbus, topology_id=WC):
    """How many Nimbuses say to have all of it."""
    blobs = keys.of_topology(topology_id)
    return distributor.complete_copies(blobs, nimbus.storm.blobs(blobs))


def test_a_watch_starts_the_copy_on_all_nimbuses(live):
    """The period is of ten minutes: it is not that."""
    one, two = live.start(1), live.start(2)
    three = live.start(3)
    for nimbus in (one, two, three):
        nimbus.code.start()
    one.code.upload(WC, code_of(WC))
    until(lambda: holders(one) == 3)
    assert whole(two)
    assert whole(three)
    activate(one, WC)
    assert two.code.sync.missing() == {}


def test_an_old_server_s_watches_start_the_copy_too(live):
    """ZooKeeper before 3.6 has no watches of whole trees."""
    live.ensemble.has_tree_watches = False
    test_a_watch_starts_the_copy_on_all_nimbuses(live)


@pytest.fixture
def reads(two, monkeypatch):
    """The keys of each read of entries by `two`; None of all."""
    asked, blobs = [], two.storm.blobs

    def read(keys=None, callback=None):
        asked.append(None if keys is None else set(keys))
        return blobs(keys, callback)

    monkeypatch.setattr(two.storm, "blobs", read)
    return asked


def test_a_round_reads_only_entries_that_changed(one, two, reads):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    two.code.sync.run_once()
    assert None in reads
    reads.clear()
    two.code.sync.run_once()
    assert reads[0] == set(keys.of_topology(WC)), "its own announcements"
    one.code.upload(OTHER, code_of(OTHER))
    for read in (set(keys.of_topology(OTHER)), set(keys.of_topology(OTHER)), set()):
        reads.clear()
        two.code.sync.run_once()
        assert reads[0] == read
    assert whole(two, OTHER)
    one.code.close()
    one.storm.disconnect()
    reads.clear()
    two.code.sync.run_once()
    assert reads[0] == {*keys.of_topology(WC), *keys.of_topology(OTHER)}


def test_a_round_reads_all_entries_after_missed_events(cluster, one, two, reads):
    two.code.sync.run_once()
    cluster.ensemble.suspend(two.storm.state)
    one.code.upload(WC, code_of(WC))
    with pytest.raises(StateUnavailableError):
        two.code.sync.run_once()
    cluster.ensemble.resume(two.storm.state)
    reads.clear()
    two.code.sync.run_once()
    assert reads[0] is None
    assert whole(two)


def test_entries_that_could_not_be_read_are_read_again(one, two, reads, monkeypatch):
    two.code.sync.run_once()
    one.code.upload(WC, code_of(WC))
    children_many = two.storm.state.children_many
    monkeypatch.setattr(two.storm.state, "children_many", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        two.code.sync.run_once()
    monkeypatch.setattr(two.storm.state, "children_many", children_many)
    one.code.upload(OTHER, code_of(OTHER))
    reads.clear()
    two.code.sync.run_once()
    assert reads[0] == {*keys.of_topology(WC), *keys.of_topology(OTHER)}
    assert whole(two)


def test_a_new_version_is_copied_by_a_watch_too(live):
    one, two = live.start(1), live.start(2)
    one.code.upload(WC, code_of(WC))
    two.code.start()
    until(lambda: holders(one) == 2)
    [jar, *_] = keys.of_topology(WC)
    update = one.code.uploads.begin_update(jar)
    one.code.uploads.chunk(update, b"new")
    record = one.code.uploads.finish(update)
    until(lambda: two.code.store.get(jar) == record)
    until(lambda: holders(one) == 2)


def test_a_nimbus_with_an_empty_disk_catches_up(live):
    one = live.start(1)
    one.code.upload(WC, code_of(WC))
    one.code.upload(OTHER, code_of(OTHER))
    activate(one, WC)
    two = live.start(2)
    assert two.code.sync.missing()[WC].keys == keys.of_topology(WC)
    assert two.code.sync.missing()[WC].lost == ()
    two.code.start()
    until(lambda: holders(one) == 2 and holders(one, OTHER) == 2)
    assert two.code.sync.missing() == {}
    assert whole(two)
    assert whole(two, OTHER)


def test_only_the_newest_counted_version_is_not_missing(one, two):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    [jar, *others] = keys.of_topology(WC)
    two.code.sync.run_once()
    assert two.code.sync.missing() == {}
    update = one.code.uploads.begin_update(jar)
    one.code.uploads.chunk(update, b"new")
    one.code.uploads.finish(update)
    assert two.code.sync.missing()[WC].keys == (jar,)
    assert one.code.sync.missing() == {}
    two.code.store.delete(others[0])
    assert two.code.sync.missing()[WC].keys == (jar, others[0])
    two.code.sync.run_once()
    assert two.code.sync.missing() == {}


def test_what_can_be_had_now_is_fetched_while_the_caller_waits(live):
    one, two = live.start(1), live.start(2)
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    assert not two.code.sync.fetch(0.01), "nobody has started it"
    two.code.start()
    assert two.code.sync.fetch(60)
    assert two.code.sync.missing() == {}
    two.code.close()
    assert not two.code.sync.fetch(60), "it has ended, and nobody waits for that"


def test_code_without_a_live_holder_is_missing_until_one_is_back(live):
    one, two = live.start(1), live.start(2)
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    live.stop(one)
    two.code.start()
    missing = two.code.sync.missing()[WC]
    assert missing.lost == keys.of_topology(WC)
    assert missing.held_last_by == (str(one.id),)
    live.start(1).code.start()
    until(lambda: two.code.sync.missing() == {})
    assert whole(two)


def test_a_nimbus_that_lost_its_disk_withdraws_the_code(cluster, one, two):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    one.code.close()  # its session lives on, as it does for a while after a crash
    del cluster.nimbuses[str(one.id)]
    for path in sorted(one.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = cluster.start(1)
    again.code.sync.run_once()
    missing = two.code.sync.missing()[WC]
    assert missing.lost == keys.of_topology(WC)
    assert missing.held_last_by == (str(one.id),)
    one.storm.disconnect()


LOSSES = {
    "folder": shutil.rmtree,
    "data": lambda folder: shutil.rmtree(folder / "data"),
    "cut off": lambda folder: [path.write_bytes(b"") for path in (folder / "data").iterdir()],
    "replaced": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_files_are_withdrawn_and_fetched_again(cluster, one, two, loss, caplog):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    two.code.sync.run_once()
    assert holders(one) == 2
    LOSSES[loss](two.folder)
    assert two.code.sync.missing()[WC].keys == keys.of_topology(WC)
    cluster.faults[str(one.id)] = cut_after(0)
    two.code.sync.run_once()
    assert holders(one) == 1
    assert f"lost the blob {WC}-stormjar.jar in {two.folder}" in caplog.text
    cluster.faults.clear()
    two.code.sync._unreached.worked(str(one.id))
    two.code.sync._woken.clear()
    two.code.sync.run_once()
    assert whole(two)
    assert holders(one) == 2
    cluster.stop(two)
    assert whole(cluster.start(2))


def test_a_file_in_place_of_the_folder_is_survived(one, two):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    two.code.sync.run_once()
    shutil.rmtree(two.folder)
    two.folder.touch()
    two.code.sync.run_once()
    assert holders(one) == 1
    two.folder.unlink()
    for key in keys.of_topology(WC):
        two.code.sync._refused.worked((str(one.id), key))
    two.code.sync.run_once()
    assert whole(two)


def test_one_after_another_loses_its_disk_and_no_code_is_lost(cluster, one, two):
    nimbuses = (one, two, cluster.start(3))
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    for each in nimbuses * 2:
        for other in nimbuses:
            other.code.sync.run_once()
        shutil.rmtree(each.folder)
    each.code.sync.run_once()
    assert all(whole(each) for each in nimbuses)


def test_a_disk_that_was_away_has_its_blobs_again(one, two):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    data = one.folder / "data"
    away = data.rename(one.folder / "away")
    one.code.sync.run_once()
    assert one.code.sync.missing()[WC].lost == keys.of_topology(WC)
    data.rmdir()
    away.rename(data)
    one.code.sync.run_once()
    assert whole(one)
    assert holders(two) == 1


def test_a_loss_that_a_reader_finds_is_told(one):
    told = []
    one.code.sync.on_loss = lambda: told.append(one.code.store.losses)
    one.code.upload(WC, code_of(WC))
    shutil.rmtree(one.folder / "data")
    with pytest.raises(BlobStorageError):
        one.code.store.open(f"{WC}-stormjar.jar")
    assert told == [3]
    with pytest.raises(BlobNotFoundError):
        one.code.store.open(f"{WC}-stormjar.jar")


def test_changed_bytes_are_found_and_fetched_again(cluster, caplog):
    one, two = cluster.start(1), cluster.start(2, scrub_secs=0.01)
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    two.code.sync.run_once()
    path = two.folder / "data" / two.code.store.get(f"{WC}-stormjar.jar").sha256
    path.write_bytes(bytes(path.stat().st_size))
    two.code.start()
    until(lambda: "its bytes have changed" in caplog.text)
    until(lambda: holders(one) == 2 and whole(two))


def test_a_copy_that_was_cut_is_gone_on_with_by_the_next_process(cluster, one, two):
    one.code.upload(WC, code_of(WC))
    cluster.faults[str(one.id)] = cut_after(1100)
    two.code.sync.run_once()
    assert not whole(two)
    [part] = (name for name in files(two.folder) if name.endswith(".part"))
    assert (two.folder / "data" / part).stat().st_size == 1100
    cluster.stop(two)
    cluster.faults[str(one.id)] = cut_after(1500)  # enough for the rest alone
    again = cluster.start(2)
    again.code.sync.run_once()
    assert whole(again)
    assert not any(name.endswith(".part") for name in files(again.folder))


def test_what_was_begun_of_a_blob_that_is_deleted_is_given_up(cluster, one, two):
    one.code.upload(WC, code_of(WC))
    cluster.faults[str(one.id)] = cut_after(1100)
    two.code.sync.run_once()
    one.code.cleanup(WC)
    two.code.sync.run_once()
    assert files(two.folder) == {"lock"}


@pytest.mark.parametrize("fault", [damages, hangs, cut_after(0), None])
def test_who_fails_is_left_alone_and_another_is_asked(cluster, one, two, fault):
    """Bad bytes, no answer, no connection, or a blob that the peer has lost."""
    three = cluster.start(3)
    one.code.upload(WC, code_of(WC))
    two.code.sync.run_once()
    three.code.sync._limits = FetchLimits(0.01)
    if fault is None:
        for key in keys.of_topology(WC):
            one.code.store.delete(key)
    else:
        cluster.faults[str(one.id)] = fault
    three.code.sync.run_once()
    assert whole(three)
    tried = cluster.dialled.count(str(one.id))
    reached = fault in (damages, None)
    # One that cannot be reached is asked for nothing more; one that has lost a blob, for others.
    assert (tried - 3) == (3 if reached else 1)


def test_bytes_that_are_wrong_everywhere_never_become_a_blob(cluster, one, two, caplog):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    cluster.faults[str(one.id)] = damages
    with caplog.at_level(logging.WARNING):
        two.code.sync.run_once()
    assert two.code.store.all() == {}
    assert two.code.sync.missing()[WC].keys == keys.of_topology(WC)
    assert "from nimbus1.example:6627:0, next try in 0.5 s" in caplog.text


def test_a_full_disk_is_logged_and_smaller_blobs_are_fetched(one, two, caplog):
    one.code.upload(WC, code_of(WC))
    with caplog.at_level(logging.WARNING), room_for(1000):
        two.code.sync.run_once()
    _jar, *others = keys.of_topology(WC)
    assert sorted(two.code.store.all()) == sorted(others)
    assert "make room, and try again" in caplog.text
    assert len(files(two.folder / "data")) == len(others)


def test_what_is_here_under_another_key_is_not_fetched(cluster, one, two):
    one.code.upload(WC, code_of(WC))
    two.code.sync.run_once()
    dialled = len(cluster.dialled)
    upload = one.code.uploads.begin_create("copy")
    one.code.uploads.chunk(upload, code_of(WC)["stormjar.jar"])
    record = one.code.uploads.finish(upload)
    two.code.sync.run_once()
    assert two.code.store.get("copy") == record
    assert len(cluster.dialled) == dialled


def test_a_topology_that_is_gone_leaves_nothing_on_any_nimbus(cluster, one, two):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    for _ in range(2):
        two.code.sync.run_once()
        one.code.sync.run_once()
    assert whole(one)
    assert whole(two)
    one.leader.remove_storm(WC)
    two.code.sync.run_once()
    assert whole(two), "a Nimbus that does not lead deletes nothing that is in ZooKeeper"
    for nimbus in (one, one, two):
        nimbus.code.sync.run_once()
    for nimbus in (one, two):
        assert nimbus.code.store.all() == {}
        assert files(nimbus.folder) == {"lock"}
    assert one.storm.blobs() == {}
    cluster.ensemble.expire(two.storm.state)
    assert one.storm.blobstore() == [], "a new session does not say again that it is there"


def test_an_announcement_that_was_late_goes_with_the_copy(one, two):
    one.code.upload(WC, code_of(WC))
    two.code.sync.run_once()
    one.code.cleanup(WC)
    late, *_ = keys.of_topology(WC)
    two.storm.setup_blob(late, two.id, 1)  # its record was written before the blob was deleted
    assert one.storm.blobstore() == [late]
    two.code.sync.run_once()
    assert two.code.store.all() == {}
    assert one.storm.blobstore() == []


def test_code_is_kept_for_the_delay(cluster):
    one = cluster.start(1, delay_secs=600.0)
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    one.leader.remove_storm(WC)
    for _ in range(2):
        one.code.sync.run_once()
    assert whole(one)
    assert one.storm.blobs() != {}


def test_code_of_a_topology_that_is_being_submitted_is_kept(one):
    one.submitted.append(WC)
    one.code.upload(WC, code_of(WC))
    activate(one, OTHER)
    for _ in range(2):
        one.code.sync.run_once()
    assert whole(one)


def test_a_former_leader_deletes_nothing(one, caplog):
    one.code.upload(WC, code_of(WC))
    activate(one, OTHER)
    one.storm.state.delete_node(paths.LEADER_LOCK)
    with caplog.at_level(logging.INFO):
        one.code.sync.run_once()
    assert "the next leader deletes" in caplog.text
    assert whole(one)
    assert len(one.storm.blobs()) == 3


def test_a_blob_that_was_stored_and_not_announced_is_announced(one, two):
    upload = one.code.uploads.begin_create("a")
    one.code.uploads.chunk(upload, b"bytes")
    record = one.code.uploads.finish(upload)
    # As if the process had ended before.
    one.storm.remove_blobstore_key("a")
    one.storm.state.delete_node(paths.blob_record("a", str(one.id), 1))
    assert one.storm.blobs()["a"].record is None
    one.code.sync.run_once()
    assert one.storm.blobs()["a"].alive == (str(one.id),)
    two.code.sync.run_once()
    assert two.code.store.get("a") == record


def test_a_blob_that_was_made_again_replaces_the_old_copy(cluster, one, two):
    """Its key was deleted and used again while the Nimbus was away: the same key, the same 1."""
    upload = one.code.uploads.begin_create("a")
    one.code.uploads.chunk(upload, b"old")
    one.code.uploads.finish(upload)
    two.code.sync.run_once()
    cluster.stop(two)
    one.code.delete("a")
    upload = one.code.uploads.begin_create("a")
    two = cluster.start(2)
    one.storm.set_blob_key_sequence("a", 1, None)  # counted, and announced by nobody yet
    two.code.sync.run_once()
    assert one.storm.blobs()["a"].record is None
    assert one.storm.blobstore_info("a") == []
    one.storm.remove_blob_key_sequence("a")
    one.code.uploads.chunk(upload, b"new")
    record = one.code.uploads.finish(upload)
    two.code.sync.run_once()
    assert two.code.store.get("a") == record


def test_topologies_code_outlives_what_zookeeper_knew_of_it(one, two):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    for path in (paths.BLOBSTORE, paths.BLOB_KEY_SEQUENCES):
        one.storm.state.delete_node(path)
    two.code.sync.run_once()
    assert two.code.sync.missing()[WC].keys == keys.of_topology(WC)
    one.code.sync.run_once()
    two.code.sync.run_once()
    assert whole(two)
    assert two.code.sync.missing() == {}


def test_keys_that_are_none_are_left_alone(one):
    one.storm.set_blob_key_sequence("a@b", 1, None)
    one.code.sync.run_once()
    assert one.code.store.all() == {}


def test_it_goes_on_after_the_store_was_away(live, caplog):
    one, two = live.start(1), live.start(2)
    two.code.start()
    until(lambda: two.code.sync._rounds_thread.is_running)
    with caplog.at_level(logging.WARNING):
        live.ensemble.suspend(two.storm.state)
        two.code.sync.wake()
        until(lambda: "blobs are not synchronised; next attempt in" in caplog.text)
    one.code.upload(WC, code_of(WC))
    live.ensemble.resume(two.storm.state)
    until(lambda: holders(one) == 2)


def test_a_change_just_before_a_round_that_fails_is_not_lost(live, monkeypatch, caplog):
    one, two = live.start(1), live.start(2)
    verify, woken = two.code.store.verify, []

    def change():
        if not woken:
            woken.append(True)
            live.ensemble.suspend(two.storm.state)
            one.code.upload(WC, code_of(WC))
            two.code.sync.wake()
        return verify()

    monkeypatch.setattr(two.code.store, "verify", change)
    two.code.start()
    until(lambda: "blobs are not synchronised" in caplog.text)
    live.ensemble.resume(two.storm.state)
    until(lambda: holders(one) == 2)


def test_it_ends_with_its_session(live):
    one = live.start(1)
    one.code.start()
    one.storm.disconnect()
    one.code.sync.wake()
    until(lambda: not one.code.sync._rounds_thread.is_running)


def test_rest_grows_ends_and_is_forgotten(clock):
    resting = PeerBackoff(clock)
    assert [resting.failed("a") for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert resting.now() == {"a": 30.0}
    clock.secs = 30
    assert resting.now() == {}
    assert resting.failed("a") == LONGEST_REST_SECS
    clock.secs = 91
    resting.now()
    assert resting.failed("a") == 0.5
    resting.worked("a")
    assert resting.now() == {}


def test_three_nimbuses_that_are_all_restarted_have_all_they_had(tmp_path):
    cluster = Cluster(tmp_path, inline=False)
    try:
        for number in (1, 2, 3):
            cluster.start(number).code.start()
        one, *_ = cluster.nimbuses.values()
        one.code.upload(WC, code_of(WC))
        activate(one, WC)
        until(lambda: holders(one) == 3)
        for nimbus in list(cluster.nimbuses.values()):
            cluster.stop(nimbus)
        for number in (1, 2, 3):
            cluster.start(number).code.start()
        again, *_ = cluster.nimbuses.values()
        until(lambda: holders(again) == 3)
        assert again.code.sync.missing() == {}
    finally:
        cluster.close()
