"""How a transaction is put together; what stores do with one is in the conformance suite."""

import pickle

import pytest

from stormkeeper.errors import (
    BadVersionError,
    InvalidPathError,
    NoNodeError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
    TransactionError,
)
from stormkeeper.state.storage import (
    Check,
    Create,
    Delete,
    SetData,
    Transaction,
    check_paths,
)


@pytest.fixture
def asked():
    """What the store was asked, one entry for each commit."""
    return []


@pytest.fixture
def transaction(asked):
    def commit(operations):
        asked.append(operations)
        return [None] * len(operations)

    return Transaction(commit)


def test_operations_are_handed_over_together_and_in_order(transaction, asked):
    transaction.check("/lock", 0).create("/a", b"1", ephemeral=True, sequential=True)
    transaction.set_data("/b", b"2", 3).delete("/c")
    transaction.check("/d").create("/e", b"").set_data("/f", b"").delete("/g", 4)
    assert asked == []
    assert transaction.commit() == [None] * 8
    assert asked == [
        (
            Check("/lock", 0),
            Create("/a", b"1", ephemeral=True, sequential=True),
            SetData("/b", b"2", 3),
            Delete("/c", -1),
            Check("/d", -1),
            Create("/e", b"", ephemeral=False, sequential=False),
            SetData("/f", b"", -1),
            Delete("/g", 4),
        )
    ]


def test_without_operations_the_store_is_not_asked(transaction, asked):
    assert transaction.commit() == []
    assert asked == []


@pytest.mark.parametrize("also", [True, False])
def test_it_is_used_once(transaction, asked, also):
    if also:
        transaction.check("/a")
    transaction.commit()
    with pytest.raises(StateError, match="committed already"):
        transaction.commit()
    with pytest.raises(StateError, match="committed already"):
        transaction.check("/b")
    assert len(asked) == also


def test_one_that_failed_is_not_tried_again():
    def fail(_operations):
        raise OutcomeUnknownError("nobody knows")

    transaction = Transaction(fail).check("/a")
    with pytest.raises(OutcomeUnknownError):
        transaction.commit()
    with pytest.raises(StateError, match="committed already"):
        transaction.commit()


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a/../b", "/\x00"])
@pytest.mark.parametrize("make", [Check, lambda path: Create(path, b""), Delete])
def test_what_is_no_path_is_refused(path, make):
    with pytest.raises(InvalidPathError):
        check_paths([Check("/there"), make(path)])


def test_the_root_is_not_deleted():
    with pytest.raises(InvalidPathError, match="root"):
        check_paths([Delete("/")])
    check_paths([SetData("/", b""), Check("/")])


def test_what_is_handed_over_does_not_change_afterwards(asked, transaction):
    transaction.check("/a").commit()
    with pytest.raises(StateError):
        transaction.check("/b")
    assert asked == [(Check("/a"),)]


def test_an_error_says_which_operation_and_why():
    error = TransactionError(2, BadVersionError("/a has version 3, and not 1"))
    assert (error.index, type(error.reason)) == (2, BadVersionError)
    assert "operation 2" in str(error)
    assert "/a has version 3" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.index, str(again)) == (2, str(error))


def test_unknown_outcome_is_unavailable_and_refusal_is_not():
    assert issubclass(OutcomeUnknownError, StateUnavailableError)
    assert not issubclass(TransactionError, StateUnavailableError)
    assert not issubclass(TransactionError, NoNodeError)
