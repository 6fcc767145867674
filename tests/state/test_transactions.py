"""Paths and errors of transactions; the conformance suite has what stores do with them."""

import pickle

import pytest

from stormkeeper.errors import (
    BadVersionError,
    InvalidPathError,
    NoNodeError,
    OutcomeUnknownError,
    StateUnavailableError,
    TransactionError,
)
from stormkeeper.state.storage import (
    Check,
    Create,
    Delete,
    SetData,
    check_paths,
)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a/../b", "/\x00"])
@pytest.mark.parametrize("make", [Check, lambda path: Create(path, b""), Delete])
def test_what_is_no_path_is_refused(path, make):
    with pytest.raises(InvalidPathError):
        check_paths([Check("/there"), make(path)])


def test_the_root_is_not_deleted():
    with pytest.raises(InvalidPathError, match="root"):
        check_paths([Delete("/")])
    check_paths([SetData("/", b""), Check("/")])


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
