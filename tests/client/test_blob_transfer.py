"""A package on its way to Nimbus."""

import io

import pytest

from stormkeeper.client.blob_transfer import upload_package
from stormkeeper.errors import RpcRefusedError, StateError


@pytest.mark.parametrize("size", [0, 1, 307_200, 1_000_000])
def test_it_arrives_in_pieces(connected, nimbus, size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    told = []
    location = upload_package(connected, io.BytesIO(data), report=told.append)
    assert nimbus.uploads[location] == data
    assert told == [*range(307_200, size, 307_200), size][: None if size else 0]


def test_a_piece_fits_into_a_message(connected, nimbus):
    pieces = []
    nimbus.uploadChunk = lambda _, chunk: pieces.append(len(chunk))
    nimbus.finishFileUpload = lambda _: None
    connected.max_frame = 10_000
    upload_package(connected, io.BytesIO(b"x" * 20_000))
    assert sum(pieces) == 20_000
    assert max(pieces) < 10_000


def test_a_file_is_sent_from_its_beginning(connected, nimbus):
    file = io.BytesIO(b"abc")
    file.read()
    assert nimbus.uploads[upload_package(connected, file)] == b"abc"


def test_a_piece_that_nimbus_refuses_ends_it(connected, nimbus):
    def refuse(*_):
        raise StateError("the disk is full")

    nimbus.uploadChunk = refuse
    with pytest.raises(RpcRefusedError, match="uploadChunk"):
        upload_package(connected, io.BytesIO(b"abc"))
