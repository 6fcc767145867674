"""Credentials as users write them; no message has one in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.client.package_builder import credentials_of_pairs, credentials_of_text
from stormkeeper.errors import ConfigError

SECRET = "hunter2"


def test_lines_and_pairs():
    text = f"# of the bank\n\n  user = bob \r\npassword={SECRET}=\nempty=\n"
    assert credentials_of_text(text, "FILE") == {
        "user": "bob",
        "password": f"{SECRET}=",
        "empty": "",
    }
    assert (
        credentials_of_text("", "FILE")
        == credentials_of_text("# nothing\n", "FILE")
        == credentials_of_pairs([])
        == {}
    )
    assert credentials_of_pairs(["a=1", "b=2=3"]) == {"a": "1", "b": "2=3"}


@given(st.dictionaries(st.text(), st.text(), min_size=1))
def test_json_has_whatever_a_credential_may_be(credentials):
    assert credentials_of_text("\n " + json.dumps(credentials), "FILE") == credentials


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"a=1\n{SECRET}\n", "^line 2 of FILE is no KEY=VALUE$"),
        (f"={SECRET}", "^line 1 of FILE is no KEY=VALUE$"),
        (f"a={SECRET}\na={SECRET}", "^line 2 of FILE: a is there twice$"),
        (f'{{"a": "{SECRET}"', "^FILE is no JSON: "),
        (f'{{"a": ["{SECRET}"]}}', "^FILE has a value that is no text: put it in quotes$"),
    ],
)
def test_what_cannot_be_read_is_said_without_what_it_is(text, said):
    with pytest.raises(ConfigError, match=said) as error:
        credentials_of_text(text, "FILE")
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None


def test_a_pair_that_is_none():
    with pytest.raises(ConfigError, match=r"^credential 2 of the command line is no KEY=VALUE$"):
        credentials_of_pairs(["a=1", SECRET])
