import pytest

from stormkeeper.nimbus.service import names
from stormkeeper.thrift.nimbus import InvalidTopologyException


@pytest.mark.parametrize("name", ["wc", "word count", "a_b-c", "wörter", "9"])
def test_names_that_storm_allows_are_allowed(name):
    names.check(name)


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "a:b", "a\\b"])
def test_names_that_storm_refuses_are_refused_in_its_words(name):
    with pytest.raises(InvalidTopologyException) as error:
        names.check(name)
    assert error.value.msg == (
        f"Topology name '{name}' is not valid. It can't be null and it must match ^[^/.:\\\\]+$"
    )


@pytest.mark.parametrize("name", ["a@b", "a\nb", "x" * 220])
def test_names_under_which_no_code_can_be_kept_are_refused_before_anything_is_written(name):
    with pytest.raises(InvalidTopologyException, match="as its code is kept under it"):
        names.check(name)
