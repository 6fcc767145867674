"""Nimbus's service is Storm's: every method, struct and id, beside a table that is not our IDL."""

import pickle
import subprocess
import sys
from enum import IntEnum

import pytest

from stormkeeper.thrift import idl, nimbus, records
from support import nimbus_ids

#: Fields from 1000 up are ours; Storm's readers skip them.
OURS = 1000
NAMES = {
    idl.BOOL: "bool",
    idl.I32: "i32",
    idl.I64: "i64",
    idl.DOUBLE: "double",
    idl.STRING: "string",
    idl.BINARY: "binary",
}
#: Arguments that may be absent: some client of Storm's leaves them out, or ours are unknown to it.
MAY_BE_ABSENT = {
    ("submitTopology", "uploadedJarLocation"),
    ("submitTopologyWithOpts", "uploadedJarLocation"),
    ("debug", "component"),
    ("listBlobs", "session"),
    ("beginBlobDownload", "offset"),
    ("getTopologyPageInfo", "window"),
    ("getComponentPageInfo", "window"),
    ("getSupervisorPageInfo", "id"),
    ("getSupervisorPageInfo", "host"),
    ("getTopologyHistory", "user"),
    ("getOwnerResourceSummaries", "owner"),
}


def cls_of(name):
    return getattr(nimbus, name, None) or getattr(records, name)


def in_words(of):
    """A type of ours as the table writes it."""
    kind, detail = of
    if isinstance(detail, type):
        return detail.__name__
    if kind == idl.MAP:
        return "map", in_words(detail[0]), in_words(detail[1])
    if kind in (idl.LIST, idl.SET):
        return "list" if kind == idl.LIST else "set", in_words(detail)
    return NAMES[kind]


def fields(cls):
    return [
        (field.id, field.name, in_words(field.type))
        for field in idl.schema_of(cls).fields
        if field.id < OURS
    ]


def test_the_table_is_whole():
    assert (len(nimbus_ids.METHODS), len(nimbus_ids.STRUCTS)) == (55, 70)


def test_there_is_no_other_method():
    assert nimbus.Nimbus.methods.keys() == nimbus_ids.METHODS.keys()


@pytest.mark.parametrize("name", nimbus_ids.METHODS)
def test_a_method_has_storms_ids(name):
    ours, storms = nimbus.Nimbus.methods[name], nimbus_ids.METHODS[name]
    assert fields(ours.arguments) == [(it.id, it.name, it.type) for it in storms.arguments]
    answer = {field_id: kind for field_id, _, kind in fields(ours.answer)}
    assert answer.pop(0, "void") == storms.returns
    assert answer == storms.throws


def test_an_argument_is_required_unless_a_client_leaves_it_out():
    absent = {
        (name, field.name)
        for name, method in nimbus.Nimbus.methods.items()
        for field in idl.schema_of(method.arguments).fields
        if not field.required
    }
    assert absent == MAY_BE_ABSENT


@pytest.mark.parametrize("name", nimbus_ids.STRUCTS)
def test_a_struct_has_storms_ids(name):
    cls, storms = cls_of(name), nimbus_ids.STRUCTS[name]
    assert fields(cls) == [(it.id, it.name, it.type) for it in storms.fields]
    required = [it.id for it in idl.schema_of(cls).fields if it.required]
    assert required == [it.id for it in storms.fields if it.mark == "!"]
    assert idl.schema_of(cls).union == (storms.kind == "union")
    assert issubclass(cls, Exception) == (storms.kind == "exception")


def test_every_struct_and_enum_of_ours_is_storms():
    ours = {
        name
        for name, cls in vars(nimbus).items()
        if isinstance(cls, type) and cls.__module__ == nimbus.__name__
    }
    assert ours - {"NimbusCalls"} <= nimbus_ids.STRUCTS.keys() | nimbus_ids.ENUMS.keys()


@pytest.mark.parametrize("name", nimbus_ids.ENUMS)
def test_an_enum_has_storms_numbers(name):
    cls = cls_of(name)
    assert issubclass(cls, IntEnum)
    assert {member.name: member.value for member in cls} == nimbus_ids.ENUMS[name]


def test_an_exception_is_raised_and_pickled():
    missing = nimbus.NotAliveException("wc is not alive")
    assert str(missing) == "wc is not alive"
    assert pickle.loads(pickle.dumps(missing)) == missing


def test_a_topologys_conf_is_not_shown():
    page = nimbus.TopologyPageInfo("wc-1-1", topology_conf='{"password": "HUSH"}')
    assert "HUSH" not in repr(page)


def test_a_command_without_nimbus_does_not_load_its_service():
    script = (
        "import stormkeeper.cli, stormkeeper.thrift.records, stormkeeper.thrift.serialization, sys;"
        "sys.exit('stormkeeper.thrift.nimbus' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
