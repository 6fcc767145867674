"""Blobs, as Storm's clients make, read and delete them."""

import pytest

from stormkeeper.blobs import keys
from support.nimbus_clients import declared, refusal, submit
from support.waiting import until

pytestmark = pytest.mark.zookeeper


def read_blob(client, key):
    begun = client.call("beginBlobDownload", {"key": key})
    data = b""
    while chunk := client.call("downloadBlobChunk", {"session": begun["session"]}):
        data += chunk
    assert begun["data_size"] == len(data)
    return begun["version"], data


def test_blobs_are_made_read_and_deleted(both, leading, client, other):
    everybody = [{"type": 1, "access": 7}]
    session = client.call("beginCreateBlob", {"key": "words.txt", "meta": {"acl": []}})
    client.call("uploadBlobChunk", {"session": session, "chunk": b"one "})
    client.call("uploadBlobChunk", {"session": session, "chunk": b"two"})
    assert not client.call("isRemoteBlobExists", {"blobKey": "words.txt"})
    client.call("finishBlobUpload", {"session": session})
    client.call("createStateInZookeeper", {"key": "words.txt"})
    assert client.call("isRemoteBlobExists", {"blobKey": "words.txt"})
    arguments = {"key": "words.txt", "meta": {"acl": []}}
    assert declared(client, "beginCreateBlob", arguments) == (
        "KeyAlreadyExistsException",
        "words.txt",
    )
    version, data = read_blob(client, "words.txt")
    assert data == b"one two"
    meta = client.call("getBlobMeta", {"key": "words.txt"})
    assert meta == {"settable": {"acl": everybody}, "version": version}

    until(lambda: client.call("getBlobReplication", {"key": "words.txt"}) == 2)
    assert read_blob(other, "words.txt") == (version, data)
    ann = [{"type": 2, "name": "ann", "access": 1}]
    client.call("setBlobMeta", {"key": "words.txt", "meta": {"acl": ann}})
    assert client.call("getBlobMeta", {"key": "words.txt"})["settable"]["acl"] == ann
    assert read_blob(client, "words.txt") == (version, data), "the bytes are the same"

    session = client.call("beginUpdateBlob", {"key": "words.txt"})
    client.call("cancelBlobUpload", {"session": session})
    session = client.call("beginUpdateBlob", {"key": "words.txt"})
    client.call("uploadBlobChunk", {"session": session, "chunk": b"three"})
    client.call("finishBlobUpload", {"session": session})
    assert read_blob(client, "words.txt")[1] == b"three"
    arguments = {"key": "words.txt", "replication": 3}
    assert "every Nimbus keeps a copy" in refusal(client, "updateBlobReplication", arguments)
    until(lambda: both[1].code.store.get("words.txt") == leading.code.store.get("words.txt"))
    client.call("deleteBlob", {"key": "words.txt"})
    assert not other.call("isRemoteBlobExists", {"blobKey": "words.txt"})


def test_the_code_of_a_topology_is_for_no_client_to_write(both, client, other, tmp_path):
    storm_id = submit(client, tmp_path, "written")
    for key in keys.of_topology(storm_id):
        until(lambda key=key: both[1].code.store.get(key))
        for one in (client, other):
            cls, text = declared(one, "beginUpdateBlob", {"key": key})
            assert cls == "AuthorizationException"
            assert text.startswith(f"{key} is a part of a topology's code")
    gone = {"key": "gone-1-1-stormjar.jar"}
    assert declared(client, "beginUpdateBlob", gone)[0] == "KeyNotFoundException"


def test_a_blob_that_a_topology_uses_is_not_deleted(client, tmp_path):
    session = client.call("beginCreateBlob", {"key": "used", "meta": {"acl": []}})
    client.call("finishBlobUpload", {"session": session})
    conf = {"topology.blobstore.map": {"used": {}}}
    storm_id = submit(client, tmp_path, "uses", conf=conf)
    assert declared(client, "deleteBlob", {"key": "used"}) == (
        "IllegalStateException",
        f"Attempting to delete active blob used used by topology {storm_id}",
    )
    jar = f"{storm_id}-stormjar.jar"
    assert declared(client, "deleteBlob", {"key": jar}) == (
        "IllegalStateException",
        f"Attempting to delete blob {jar} from under active topology {storm_id}",
    )


def test_keys_are_listed_in_parts(leading, client):
    for number in range(120):
        leading.storm.setup_blob(f"listed-{number:03}", leading.id, 1)
    listed, session = [], None
    while True:
        part = client.call("listBlobs", {} if session is None else {"session": session})
        assert len(part["keys"]) <= 100
        if not part["keys"]:
            break
        listed += part["keys"]
        session = part["session"]
    assert listed == leading.storm.blobstore()
    assert len(listed) > 120
    for number in range(120):
        leading.storm.remove_blobstore_key(f"listed-{number:03}")
