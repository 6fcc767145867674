"""What of thriftpy2 is relied on without being documented, and what it must therefore look like.

If one of these fails, thriftpy2 has changed: read its new source before the cap is moved.
"""

import io
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from thriftpy2 import load_fp
from thriftpy2.thrift import TPayload

from stormkeeper.thrift.idl import BINARY, BOOL, I32, I64, LIST, MAP, SET, STRING, STRUCT

IDL = """
enum Color { RED = 1, BLUE = 4 }
struct Point {
  1: required i64 x (storm2 = "i32"),
  2: optional string name = "a",
  3: Color color,
  4: map<Color, list<binary>> by,
  6: set<Point> near,
  7: bool seen
}
union Either { 1: i32 a, 2: string b }
exception Refused { 1: string why }
service Base { void ping() }
service Paint extends Base {
  Color mix(1: Color one, 2: Color other) throws (1: Refused refused),
  oneway void tell(1: string what)
}
"""


@pytest.fixture(scope="module")
def meta():
    parsed = load_fp(io.StringIO(IDL), "shape_thrift")
    yield parsed.__thrift_meta__
    del sys.modules["shape_thrift"]


def test_parser_lists_classes_by_kind(meta):
    names = {kind: [cls.__name__ for cls in classes] for kind, classes in meta.items()}
    assert names == {
        "enums": ["Color"],
        "structs": ["Point"],
        "unions": ["Either"],
        "exceptions": ["Refused"],
        "services": ["Base", "Paint"],
    }
    for cls in (*meta["structs"], *meta["unions"], *meta["exceptions"]):
        assert issubclass(cls, TPayload)
    assert issubclass(meta["exceptions"][0], Exception)


def test_service_has_methods_with_arguments_and_answers(meta):
    [color], [refused], [_, paint] = meta["enums"], meta["exceptions"], meta["services"]
    assert sorted(paint.thrift_services) == ["mix", "ping", "tell"]
    assert paint.mix_args.thrift_spec == {
        1: (I32, "one", color, False),
        2: (I32, "other", color, False),
    }
    assert paint.mix_result.thrift_spec == {
        0: (I32, "success", color, False),
        1: (STRUCT, "refused", refused, False),
    }
    assert paint.ping_result.thrift_spec == {}
    assert (paint.mix_result.oneway, paint.tell_result.oneway) == (False, True)
    for cls in (paint.mix_args, paint.mix_result, paint.ping_args):
        assert issubclass(cls, TPayload)


def test_enum_has_its_members(meta):
    [color] = meta["enums"]
    assert color._NAMES_TO_VALUES == {"RED": 1, "BLUE": 4}


def test_record_class_has_its_fields(meta):
    [color], [point], [either] = meta["enums"], meta["structs"], meta["unions"]
    assert point.thrift_spec == {
        1: (I64, "x", True),
        2: (STRING, "name", False),
        3: (I32, "color", color, False),
        4: (MAP, "by", ((I32, color), (LIST, BINARY)), False),
        6: (SET, "near", (STRUCT, point), False),
        7: (BOOL, "seen", False),
    }
    assert list(point.thrift_spec) == [1, 2, 3, 4, 6, 7], "in the order of the IDL"
    assert either.thrift_spec == {1: (I32, "a", False), 2: (STRING, "b", False)}


def test_a_field_has_its_annotations(meta):
    [point] = meta["structs"]
    assert point.__thrift_field_annotations__ == {"x": {"storm2": "i32"}}


def test_a_record_has_its_values_as_attributes_in_order(meta):
    [point] = meta["structs"]
    record = point(x=1)
    assert vars(record) == {
        "x": 1,
        "name": "a",
        "color": None,
        "by": None,
        "near": None,
        "seen": None,
    }
    assert list(vars(record)) == [name for _, name, *_ in point.thrift_spec.values()]


def test_whatever_the_version_it_is_one_that_is_known():
    """The cap, and this test, are moved together with a look at the new source."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert "thriftpy2>=0.7,<0.8" in tomllib.loads(project.read_text())["project"]["dependencies"]
    assert metadata.version("thriftpy2").startswith("0.7.")
