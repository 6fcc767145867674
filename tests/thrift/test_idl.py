"""The IDL files, the classes made from them and the stubs that type them say the same."""

import ast
from enum import IntEnum
from importlib import resources

import pytest

from stormkeeper.thrift import idl, pacemaker, records

MODULES = pytest.mark.parametrize(
    ("module", "stub"), [(records, "records.pyi"), (pacemaker, "pacemaker.pyi")]
)
PYTHON_TYPES = {
    idl.BOOL: "bool",
    idl.DOUBLE: "float",
    idl.I16: "int",
    idl.I32: "int",
    idl.I64: "int",
    idl.STRING: "str",
    idl.BINARY: "bytes",
}


def python_type(of, *, as_key=False):
    kind, detail = of
    if isinstance(detail, type):
        return detail.__name__
    if kind == idl.MAP:
        return f"dict[{python_type(detail[0], as_key=True)}, {python_type(detail[1])}]"
    if kind == idl.SET:
        return f"set[{python_type(detail)}]"
    if kind == idl.LIST:
        element = python_type(detail)
        return f"tuple[{element}, ...]" if as_key else f"list[{element}]"
    return PYTHON_TYPES[kind]


def classes(module):
    return {
        name: cls
        for name, cls in vars(module).items()
        if isinstance(cls, type) and cls.__module__ == module.__name__
    }


def stub_of(file):
    tree = ast.parse(resources.files(idl.__package__).joinpath(file).read_text(encoding="utf-8"))
    (exported,) = (
        ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
    )
    return exported, {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def optional(field):
    return python_type(field.type) + ("" if field.required else " | None")


@MODULES
def test_the_stub_has_every_class_and_no_other(module, stub):
    exported, stubs = stub_of(stub)
    assert sorted(stubs) == sorted(classes(module)) == exported
    assert len(exported) == {records: 28, pacemaker: 12}[module]


@MODULES
def test_the_stub_has_every_field_with_its_type(module, stub):
    _, stubs = stub_of(stub)
    for name, cls in classes(module).items():
        if issubclass(cls, IntEnum):
            members = {
                node.targets[0].id: ast.literal_eval(node.value) for node in stubs[name].body
            }
            assert members == {member.name: member.value for member in cls}
            continue
        fields = idl.schema_of(cls).fields
        attributes = [
            (node.target.id, ast.unparse(node.annotation))
            for node in stubs[name].body
            if isinstance(node, ast.AnnAssign)
        ]
        assert attributes == [(field.name, optional(field)) for field in fields], name


@MODULES
def test_the_stub_has_every_constructor(module, stub):
    _, stubs = stub_of(stub)
    for name, cls in classes(module).items():
        if issubclass(cls, IntEnum):
            continue
        (init,) = (node for node in stubs[name].body if isinstance(node, ast.FunctionDef))
        parameters = [
            (parameter.arg, ast.unparse(parameter.annotation)) for parameter in init.args.args[1:]
        ]
        fields = idl.schema_of(cls).fields
        assert parameters == [(field.name, optional(field)) for field in fields], name
        without_default = len(parameters) - len(init.args.defaults)
        last_required = max((n for n, f in enumerate(fields, 1) if f.required), default=0)
        assert without_default == last_required, name


def test_only_one_field_differs_between_storm_2_and_3():
    wider = {
        (name, field.name): (field.storm2, field.type)
        for name, cls in classes(records).items()
        if not issubclass(cls, IntEnum)
        for field in idl.schema_of(cls).fields
        if field.storm2
    }
    assert wider == {("ClusterWorkerHeartbeat", "time_secs"): ((idl.I32, None), (idl.I64, None))}


def test_field_ids_that_storm_never_gave_stay_free():
    def ids(cls):
        return [field.id for field in idl.schema_of(cls).fields]

    assert ids(records.LogConfig) == [2, 1000]
    assert ids(pacemaker.HBMessageData) == [1, 2, 3, 4, 5, 7, 100, 101, 102, 103]


def test_fields_of_ours_are_optional_and_have_ids_that_storm_never_gives():
    ours = {
        (name, field.name): field.required
        for name, cls in classes(records).items()
        if not issubclass(cls, IntEnum)
        for field in idl.schema_of(cls).fields
        if field.id >= 1000
    }
    leaders = ("Assignment", "StormBase", "Credentials", "LogConfig", "ProfileRequest", "TaskInfo")
    assert ours == {
        ("ExecutorStats", "component"): False,
        ("ExecutorStats", "partial_batches"): False,
        ("ClusterWorkerHeartbeat", "completed"): False,
        **{(name, "leader_epoch"): False for name in leaders},
    }


def test_other_classes_have_no_schema():
    with pytest.raises(TypeError, match="not a record class"):
        idl.schema_of(dict)
