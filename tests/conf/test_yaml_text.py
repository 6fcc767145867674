import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.conf import yaml_text
from stormkeeper.errors import ConfigError

# What YAML can say; a lone surrogate is no character and cannot be read from a file.
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=10
)


@given(values)
def test_every_value_round_trips_on_one_line(value):
    line = yaml_text.write_value(value)
    assert len(line.splitlines()) <= 1
    assert yaml_text.read(line) == value
    assert type(yaml_text.read(line)) is type(value)


@given(st.dictionaries(texts, values))
def test_every_document_round_trips(document):
    assert yaml_text.read(yaml_text.write(document)) == document


def test_a_number_that_is_none_round_trips():
    assert math.isnan(yaml_text.read(yaml_text.write_value(math.nan)))


def test_a_date_stays_text():
    assert yaml_text.read("a: 2024-01-02") == {"a": "2024-01-02"}


def test_reads_yaml_1_1_as_storm_does():
    assert yaml_text.read("a: yes\nb: 0x10\nc: ~") == {"a": True, "b": 16, "c": None}


def test_merge_keys_are_no_duplicates():
    text = """
    base: &base {x: 1, y: 1}
    more: &more {<<: *base, y: 2, z: 2}
    last: {<<: [*more, *base], z: 3}
    again: *more
    """
    assert yaml_text.read(text)["last"] == {"x": 1, "y": 2, "z": 3}
    assert yaml_text.read(text)["again"] == {"x": 1, "y": 2, "z": 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3", r"the key a stands twice \(line 3, column 1\)"),
        ("a: {b: 1, b: 2}", r"the key b stands twice \(line 1, column 11\)"),
        ("a: [1", r"not YAML: .* \(line"),
        ("a: 'x", "not YAML"),
        ("\ta: 1", "not YAML"),
        ("a: *hush", r"YAML does not define \(line 1, column 4\)"),
        ("a: !hush 1", r"YAML does not define \(line 1, column 4\)"),
        ("[hush]: 1", "YAML does not define"),
        ("a: 1\n---\na: 2", "more than one document"),
        (b"a: \xff", "UTF-8"),
        ("a: \x01", "control character"),
        ("a: 0b_", "quote it"),
        ("a: " + "9" * 5000, "quote it"),
    ],
)
def test_says_what_is_wrong_without_quoting_it(text, says):
    with pytest.raises(ConfigError, match=says) as failure:
        yaml_text.read(text)
    assert "hush" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_what_has_no_yaml_form_is_refused():
    with pytest.raises(ConfigError, match="type object has no YAML form"):
        yaml_text.write_value(object())
