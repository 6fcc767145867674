"""The wheels of what is required."""

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.package.environment import gather
from support.packages import wheel

DATA = {"x.py": ""}


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "gathered"
    place.mkdir()
    return place


def test_all_that_is_pinned_and_nothing_else(index, folder):
    wheel(index, "tiny", "1.0", DATA, requires=["helper"])
    wheel(index, "tiny", "2.0", DATA)
    wheel(index, "helper", "2.0", DATA)
    found = gather(["tiny==1.0"], folder, file="requirements.txt")
    assert [file.name for file in found] == ["tiny-1.0-py3-none-any.whl"]


@pytest.mark.usefixtures("index")
def test_what_pip_cannot_get_is_said_in_its_words(folder):
    with pytest.raises(TopologyError, match=r"(?s)the wheels for r\.txt cannot be .* gone==1"):
        gather(["gone==1"], folder, file="r.txt")


def test_an_address_is_refused(folder):
    pin = f"tiny @ https://example.org/tiny.whl#sha256={'0' * 64}"
    with pytest.raises(TopologyError, match="the wheel of tiny cannot be brought"):
        gather([pin], folder, file="r.txt")


def test_nothing_is_gathered_for_nothing(folder):
    assert gather([], folder, file="r.txt") == ()
