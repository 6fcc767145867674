import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.topology.plan import Claim

NUMBERS = st.integers(0, 2**63 - 1)


@given(st.builds(Claim, NUMBERS, NUMBERS, NUMBERS))
def test_it_is_read_as_it_was_written(claim):
    assert Claim.parse(str(claim)) == claim


@pytest.mark.parametrize(
    "text", ["", "1", "1-2", "1-2-", "a-2-0", "1--0", "-1-2-0", "1-2-0 ", "٣-2-0", "1-2-3-4"]
)
def test_what_is_none_is_refused(text):
    with pytest.raises(ValueError, match="is no claim: EPOCH-COUNTER-LAUNCH"):
        Claim.parse(text)


def test_a_later_reign_counts_before_a_later_launch():
    assert Claim(9, 99) < Claim(10, 1) < Claim(10, 1, 1) < Claim(10, 2)
