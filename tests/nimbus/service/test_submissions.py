import pytest

from stormkeeper.errors import CallRefusedError
from stormkeeper.nimbus.service.context import MOST, Submissions
from stormkeeper.thrift.nimbus import AlreadyAliveException


def test_ids_are_counted_also_by_submissions_that_fail():
    submissions = Submissions()

    def fail():
        with submissions.submitting("wc"):
            assert submissions.ids() == []
            assert submissions.new_id("wc", 1_700_000_000.9) == "wc-1-1700000000"
            assert submissions.ids() == ["wc-1-1700000000"]
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert submissions.ids() == []
    with submissions.submitting("other"):
        assert submissions.new_id("other", 1_700_000_001) == "other-2-1700000001"


def test_of_two_of_one_name_at_once_the_second_is_refused():
    submissions = Submissions()
    with submissions.submitting("wc"):
        with (
            pytest.raises(AlreadyAliveException, match="wc is already alive"),
            submissions.submitting("wc"),
        ):
            pass
        assert submissions.new_id("wc", 1) == "wc-1-1", "the first goes on"
    with submissions.submitting("wc"):
        pass


@pytest.mark.parametrize(("threads", "most"), [(64, MOST), (2 * MOST, MOST), (5, 2), (1, 1)])
def test_number_of_submissions_is_limited(threads, most):
    submissions = Submissions(threads)
    under_way = [submissions.submitting(str(number)) for number in range(most)]
    for each in under_way:
        each.__enter__()
    with pytest.raises(CallRefusedError, match="try again"), submissions.submitting("one more"):
        pass
    under_way[0].__exit__(None, None, None)
    with submissions.submitting("one more"):
        pass
