import shutil

import pytest

from stormkeeper.blobs import keys
from stormkeeper.errors import (
    BlobExistsError,
    BlobInUseError,
    BlobNotFoundError,
    BlobStorageError,
)
from support.code import activate, code_of, copies
from support.disks import files, room_for

WC = "wc-1-1700000000"


@pytest.fixture
def one(cluster):
    return cluster.start(1)


def test_code_is_uploaded_from_bytes_and_from_files(one, tmp_path):
    package = tmp_path / "package.zip"
    package.write_bytes(bytes(3_000_000))
    one.code.upload(WC, code_of(WC) | {"stormjar.jar": package})
    assert sorted(one.code.store.all()) == sorted(keys.of_topology(WC))
    assert one.code.store.get(keys.of_topology(WC)[0]).size == 3_000_000
    assert copies(one, WC) == 1
    assert copies(one, "other") == 0


def test_the_copies_are_counted(cluster, one):
    one.code.upload(WC, code_of(WC))
    two = cluster.start(2)
    two.code.sync.run_once()
    assert copies(one, WC) == 2
    cluster.stop(two)
    assert copies(one, WC) == 1


def test_code_is_uploaded_as_a_whole_or_not_at_all(one):
    with pytest.raises(ValueError, match=r"a topology's code has stormjar\.jar, stormcode\.ser"):
        one.code.upload(WC, {"stormjar.jar": b""})
    large = code_of(WC) | {"stormconf.ser": bytes(9000)}
    with room_for(5000), pytest.raises(BlobStorageError):
        one.code.upload(WC, large)
    assert files(one.folder) == {"lock"}
    assert one.storm.blobs() == {}
    one.code.upload(WC, large)
    with pytest.raises(BlobExistsError):
        one.code.upload(WC, code_of(WC))
    assert one.code.store.get(keys.of_topology(WC)[2]).size == 9000


def test_a_part_is_changed_for_all_and_what_stays_is_left_alone(cluster, one):
    one.code.upload(WC, code_of(WC))
    two = cluster.start(2)
    two.code.sync.run_once()
    jar, code, conf = keys.of_topology(WC)
    before = [one.code.store.get(key) for key in (jar, code, conf)]
    one.code.change(WC, "stormconf.ser", lambda data: data)
    assert one.code.store.get(conf) == before[2]
    one.code.change(WC, "stormconf.ser", lambda data: data + b" and more")
    assert copies(one, WC) == 1
    two.code.sync.run_once()
    assert copies(one, WC) == 2
    record, file = two.code.store.open(conf)
    with file:
        assert file.read() == code_of(WC)["stormconf.ser"] + b" and more"
    assert (record.version, record.born) == (before[2].version + 1, before[2].born)
    assert [two.code.store.get(key) for key in (jar, code)] == before[:2]


@pytest.mark.parametrize("more", [b"", b" and more"])
def test_a_change_that_was_lost_with_its_disk_is_made_again(cluster, one, more):
    two = cluster.start(2)
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    two.code.sync.run_once()
    one.code.change(WC, "stormconf.ser", lambda data: data + b" and more")
    with pytest.raises(BlobNotFoundError, match="not here yet"):
        two.code.change(WC, "stormconf.ser", lambda data: data + more, is_repeated=True)
    shutil.rmtree(one.folder)
    one.code.sync.run_once()
    with pytest.raises(BlobNotFoundError, match="not here yet"):
        two.code.change(WC, "stormconf.ser", lambda data: data + more)
    two.code.change(WC, "stormconf.ser", lambda data: data + more, is_repeated=True)
    one.code.sync._woken.clear()
    one.code.sync.run_once()
    for nimbus in (one, two):
        assert nimbus.code.sync.missing() == {}
        record, file = nimbus.code.store.open(f"{WC}-stormconf.ser")
        with file:
            assert (record.version, file.read()) == (3, b"{}" + more)


def test_of_two_who_change_a_part_the_second_learns_of_the_first(cluster, one):
    one.code.upload(WC, code_of(WC))
    two = cluster.start(2)
    two.code.sync.run_once()

    def changed_by_two_meanwhile(data):
        two.code.change(WC, "stormconf.ser", lambda data: data + b"2")
        return data + b"1"

    with pytest.raises(BlobExistsError):
        one.code.change(WC, "stormconf.ser", changed_by_two_meanwhile)
    with pytest.raises(BlobNotFoundError, match="is not here yet"):
        one.code.change(WC, "stormconf.ser", lambda data: data + b"1")
    assert two.code.store.get(keys.of_topology(WC)[2]).version == 2


def test_code_in_use_is_not_deleted_and_other_code_is(cluster, one):
    one.code.upload(WC, code_of(WC))
    activate(one, WC)
    with pytest.raises(BlobInUseError, match=f"the code of {WC} is in use: kill the topology"):
        one.code.cleanup(WC)
    for key in keys.of_topology(WC):
        with pytest.raises(BlobInUseError):
            one.code.delete(key)
    one.leader.remove_storm(WC)
    for _ in range(2):
        one.code.cleanup(WC)
    cluster.ensemble.expire(one.storm.state)
    assert one.storm.blobstore() == [], "a new session does not say again that it is there"
    assert files(one.folder) == {"lock"}
    assert one.storm.blobs() == {}


def test_what_clients_were_uploading_goes_with_the_distributor(cluster, one):
    session = one.code.uploads.begin_create("a")
    one.code.uploads.chunk(session, b"half")
    cluster.stop(one)
    assert files(one.folder) == {"lock"}


def test_what_is_idle_ends_in_each_round(cluster):
    nimbus = cluster.start(1, idle_secs=0.0)
    nimbus.code.uploads.begin_create("a")
    nimbus.code.sync.run_once()
    assert files(nimbus.folder) == {"lock"}
