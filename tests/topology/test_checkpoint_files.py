"""Broken checkpoints, as Spark lays them out."""

import json

import pytest

from stormkeeper.topology.checkpoint_files import check, checkpoints, mend

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"logOffset":%d}\n-'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


@pytest.fixture
def place(tmp_path):
    """A checkpoint after batch 2."""
    place = tmp_path / "topology" / "out"
    for name in ("offsets", "commits"):
        (place / name).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"an id"}')
    for number in range(3):
        (place / "offsets" / str(number)).write_text(OFFSETS % number)
        (place / "commits" / str(number)).write_text(COMMIT)
        (place / "offsets" / f".{number}.crc").write_bytes(bytes(12))
    return place


def left(place):
    return [sorted(f.name for f in (place / log).glob("?")) for log in ("offsets", "commits")]


def test_nothing_is_wrong(place):
    assert check(place) == []
    assert checkpoints(place.parent.parent) == checkpoints(place) == [place]


@pytest.mark.parametrize("size", [0, 1, 3, 10, 25, 40])
@pytest.mark.parametrize("is_committed", [True, False])
def test_offsets_that_are_empty_or_cut_off(place, size, is_committed):
    newest = place / "offsets" / "2"
    newest.write_text(newest.read_text()[:size])
    if not is_committed:
        (place / "commits" / "2").unlink()
    [defect] = check(place)
    assert defect.text == f"{newest} is {f'cut off, at {size} bytes' if size else 'empty'}"
    assert "batch 2 is planned anew" in defect.lost.replace("the batch", "batch 2")
    mend(place, [defect])
    assert check(place) == []
    assert left(place) == [["0", "1"], ["0", "1"]]
    assert (place / "mended" / "offsets" / "2").exists()
    assert not (place / "offsets" / ".2.crc").exists()


def test_a_commit_that_is_empty_or_has_no_offsets(place):
    (place / "commits" / "2").write_text("")
    [defect] = check(place)
    assert "batch 2 is done again with the same rows" in defect.lost
    mend(place, [defect])
    assert left(place) == [["0", "1", "2"], ["0", "1"]]
    (place / "offsets" / "2").unlink()
    (place / "offsets" / "1").unlink()
    [defect] = check(place)
    assert defect.text.endswith("commits/1 has no offsets/1")
    mend(place, [defect])
    assert left(place) == [["0"], ["0"]]
    assert check(place) == []


def test_what_cannot_be_mended_is_left_alone(place):
    (place / "offsets" / "1").write_text("")
    [defect] = check(place)
    assert defect.text.endswith("offsets/1 is empty, and is not the newest: restore it from a copy")
    assert not defect.is_mendable
    (place / "offsets" / "1").unlink()
    (place / "offsets" / "2").write_text("v1")
    [defect] = check(place)
    assert not defect.is_mendable
    before = left(place)
    mend(place, [defect])
    assert left(place) == before


def test_an_empty_id_is_replaced(place):
    (place / "metadata").write_text("")
    [defect] = check(place)
    assert "the query gets a new one" in defect.lost.replace("the query's id: ", "")
    mend(place, [defect])
    assert json.loads((place / "metadata").read_text())["id"]
    assert check(place) == []
