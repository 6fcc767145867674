import pytest

from stormkeeper.blobs import keys
from stormkeeper.blobs.peers import deliver
from stormkeeper.errors import BlobNotFoundError, InvalidBlobKeyError, PeerError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.serialization import Codec
from support.code import code_of, cut_after, damages
from support.disks import files

WC = "wc-1-1700000000"


@pytest.fixture
def one(cluster):
    nimbus = cluster.start(1)
    nimbus.code.upload(WC, code_of(WC))
    return nimbus


@pytest.fixture
def supervisor(cluster):
    """The state as a supervisor has it."""
    storm = StormClusterState(cluster.ensemble.session(), Codec())
    yield storm
    storm.disconnect()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "stormdist" / WC


def read(paths):
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.usefixtures("one")
def test_code_is_delivered_as_it_was_uploaded(cluster, supervisor, folder):
    found = deliver(supervisor, cluster.peers, WC, folder)
    assert found == [folder / part for part in keys.PARTS]
    assert read(found) == code_of(WC)
    assert [path.name for path in folder.parent.iterdir()] == [WC]


def test_code_is_there_as_a_whole_or_not_and_is_gone_on_with(cluster, one, supervisor, folder):
    cluster.faults[str(one.id)] = cut_after(1100)
    with pytest.raises(PeerError, match="the connection was cut after 1100 bytes"):
        deliver(supervisor, cluster.peers, WC, folder)
    assert not folder.exists()
    cluster.faults[str(one.id)] = cut_after(1500)
    assert read(deliver(supervisor, cluster.peers, WC, folder)) == code_of(WC)


def test_a_nimbus_that_fails_is_followed_by_another(cluster, one, supervisor, folder):
    two = cluster.start(2)
    two.code.sync.run_once()
    cluster.faults[str(one.id)] = damages
    assert read(deliver(supervisor, cluster.peers, WC, folder)) == code_of(WC)


def test_a_new_version_takes_the_place_of_the_old(cluster, one, supervisor, folder):
    deliver(supervisor, cluster.peers, WC, folder)
    (folder / "made-by-somebody").touch()
    update = one.code.uploads.begin_update(keys.of_topology(WC)[0])
    one.code.uploads.chunk(update, b"new")
    one.code.uploads.finish(update)
    found = deliver(supervisor, cluster.peers, WC, folder)
    assert read(found) == code_of(WC) | {"stormjar.jar": b"new"}
    assert files(folder.parent) == set(keys.PARTS)


def test_code_that_nobody_has_is_told_with_who_had_it(cluster, one, supervisor, folder):
    with pytest.raises(BlobNotFoundError, match=r"no Nimbus has ever had other-1-1-stormjar\.jar"):
        deliver(supervisor, cluster.peers, "other-1-1", folder)
    cluster.stop(one)
    with pytest.raises(PeerError, match=r"no live Nimbus has .*: nimbus1\.example:6627:0"):
        deliver(supervisor, cluster.peers, WC, folder)
    with pytest.raises(InvalidBlobKeyError):
        deliver(supervisor, cluster.peers, "../other", folder)
    assert not folder.exists()
