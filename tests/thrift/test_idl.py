"""The IDL files, the classes made from them and the stubs that type them say the same."""

import ast
import copy
import pickle
import sys
import types
from enum import IntEnum
from importlib import resources

import pytest
from thriftpy2.thrift import TPayload

from stormkeeper.errors import SerializationError
from stormkeeper.thrift import idl, nimbus, pacemaker, reader, records, writer

MODULES = pytest.mark.parametrize(
    ("module", "stub"),
    [(records, "records.pyi"), (pacemaker, "pacemaker.pyi"), (nimbus, "nimbus.pyi")],
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


#: What a stub has besides records and enums: a service, and its calls.
SERVICES = {"Nimbus", "NimbusCalls"}


def classes(module):
    return {
        name: cls
        for name, cls in vars(module).items()
        if isinstance(cls, type)
        and issubclass(cls, TPayload | IntEnum)
        and cls.__module__ == module.__name__
    }


def stub_of(file):
    tree = ast.parse(resources.files(idl.__package__).joinpath(file).read_text(encoding="utf-8"))
    (exported,) = (
        ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
    )
    records = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return exported, {node.name: node for node in records if node.name not in SERVICES}


def optional(field):
    return python_type(field.type) + ("" if field.required else " | None")


@MODULES
def test_the_stub_has_every_class_and_no_other(module, stub):
    exported, stubs = stub_of(stub)
    assert sorted(stubs) == sorted(classes(module)) == sorted({*exported} - SERVICES)
    assert exported == sorted(exported)
    assert len(stubs) == {records: 36, pacemaker: 10, nimbus: 56}[module]


@MODULES
def test_the_stub_tells_an_exception_from_a_record(module, stub):
    _, stubs = stub_of(stub)
    for name, cls in classes(module).items():
        if not issubclass(cls, IntEnum):
            base = "TException" if issubclass(cls, Exception) else "TPayload"
            assert [ast.unparse(node) for node in stubs[name].bases] == [base], name


def test_the_stub_has_every_call_with_its_types():
    tree = ast.parse(resources.files(idl.__package__).joinpath("nimbus.pyi").read_text("utf-8"))
    (calls,) = (node for node in tree.body if getattr(node, "name", "") == "NimbusCalls")
    stubs = {
        node.name: (
            [(it.arg, ast.unparse(it.annotation)) for it in node.args.posonlyargs[1:]],
            ast.unparse(node.returns),
        )
        for node in calls.body
    }
    methods = {}
    for name, method in nimbus.Nimbus.methods.items():
        arguments = idl.schema_of(method.arguments).fields
        answer = {field.id: field for field in idl.schema_of(method.answer).fields}
        methods[name] = (
            [(field.name, optional(field)) for field in arguments],
            python_type(answer[0].type) if 0 in answer else "None",
        )
    assert stubs == methods


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
    assert ids(pacemaker.HBMessageData) == [1, 2, 3, 4, 5, 7, 100, 101]


def test_our_fields_are_optional_with_ids_unused_by_storm():
    ours = {
        (name, field.name): field.required
        for name, cls in classes(records).items()
        if not issubclass(cls, IntEnum)
        for field in idl.schema_of(cls).fields
        if field.id >= 1000 and cls is not records.WorkerActivity  # ours as a whole
    }
    leaders = (
        *("Assignment", "Checkpoints", "StormBase", "Credentials"),
        *("LogConfig", "ProfileRequest", "TaskInfo"),
    )
    assert ours == {
        ("NimbusSummary", "disk_fault"): False,
        ("ExecutorStats", "component"): False,
        ("ExecutorStats", "partial_batches"): False,
        ("ClusterWorkerHeartbeat", "completed"): False,
        ("ClusterWorkerHeartbeat", "inactive"): False,
        ("ClusterWorkerHeartbeat", "queries"): False,
        ("ClusterWorkerHeartbeat", "jvm_silent_ms"): False,
        ("ClusterWorkerHeartbeat", "waiting"): False,
        ("Assignment", "launches"): False,
        ("KillOptions", "purge"): False,
        ("StormBase", "deadline_ms"): False,
        ("StormBase", "checkpoints"): False,
        ("SupervisorInfo", "stopped_workers"): False,
        ("SupervisorInfo", "http_port"): False,
        ("SupervisorInfo", "refuses"): False,
        ("SupervisorInfo", "slots"): False,
        ("SupervisorInfo", "stormkeeper"): False,
        ("NimbusSummary", "stormkeeper"): False,
        **{(name, "leader_epoch"): False for name in leaders},
    }


def test_other_classes_have_no_schema():
    with pytest.raises(TypeError, match="not a record class"):
        idl.schema_of(dict)


SERVICE = """
enum Kind { FIRST = 1, SECOND = 2 }
struct Options { 1: optional i32 wait_secs; 2: optional Kind kind }
exception MissingException { 1: required string msg }
exception BusyException { 1: required Options later; 2: optional list<string> names }
service Base { bool isThere(1: string name) }
service Example extends Base {
    Options look(1: string name, 2: list<Options> options)
        throws (1: MissingException missing, 2: BusyException busy)
    void clear()
    oneway void tell(1: binary data, 2: map<string, Kind> kinds)
}
"""


@pytest.fixture(scope="module")
def example():
    module = types.ModuleType("example_of_a_service")
    vars(module).update(idl.load_text(SERVICE, module.__name__))
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


class TestServices:
    def test_a_service_has_its_methods_and_those_that_it_extends(self, example):
        assert example.Example.name == "Example"
        assert sorted(example.Example.methods) == ["clear", "isThere", "look", "tell"]
        assert list(example.Base.methods) == ["isThere"]

    def test_arguments_and_answers_have_their_ids(self, example):
        look = example.Example.methods["look"]
        ids = [(field.id, field.name) for field in idl.schema_of(look.arguments).fields]
        assert ids == [(1, "name"), (2, "options")]
        ids = [(field.id, field.name) for field in idl.schema_of(look.answer).fields]
        assert ids == [(0, "success"), (1, "missing"), (2, "busy")]
        assert idl.schema_of(example.Example.methods["clear"].answer).fields == ()

    def test_one_way_method_has_no_answer_class(self, example):
        assert example.Example.methods["tell"].answer is None

    def test_sent_messages_are_received(self, example):
        options, methods = example.Options(7, example.Kind.SECOND), example.Example.methods
        for record in (
            methods["look"].arguments("a", [options, example.Options()]),
            methods["look"].answer(success=options),
            methods["look"].answer(missing=example.MissingException("a is not alive")),
            methods["look"].answer(busy=example.BusyException(options, ["a", "b"])),
            methods["clear"].arguments(),
            methods["clear"].answer(),
            methods["isThere"].answer(False),
            methods["tell"].arguments(b"\0\xff", {"a": example.Kind.FIRST}),
        ):
            assert reader.decode(type(record), writer.encode(record)) == record

    def test_bytes_on_the_wire(self, example):
        found = example.Example.methods["isThere"]
        assert writer.encode(found.arguments("ab")) == b"\x0b\0\x01\0\0\0\x02ab\0"
        assert writer.encode(found.answer(True)) == b"\x02\0\0\x01\0"
        missing = example.Example.methods["look"].answer(missing=example.MissingException("x"))
        assert writer.encode(missing) == b"\x0c\0\x01\x0b\0\x01\0\0\0\x01x\0\0"

    def test_a_required_field_of_an_exception_is_required(self, example):
        with pytest.raises(SerializationError, match="msg"):
            writer.encode(example.MissingException())


class TestIncludes:
    IDL = """
include "example.thrift"
struct Twice { 1: example.Options one; 2: map<string, list<example.Kind>> kinds }
service Other {
  example.Options look(1: list<example.Options> options, 2: example.Kind kind)
}
"""

    @pytest.fixture
    def other(self, example):
        return idl.load_text(self.IDL, "example_that_includes", {"example": example})

    def test_module_holds_only_its_own_classes(self, other):
        assert sorted(other) == ["Other", "Twice"]

    def test_a_class_that_is_there_is_not_made_again(self, other, example):
        one, kinds = idl.schema_of(other["Twice"]).fields
        assert one.type == (idl.STRUCT, example.Options)
        assert kinds.type[1][1] == (idl.LIST, (idl.I32, example.Kind))
        look = other["Other"].methods["look"]
        options, kind = idl.schema_of(look.arguments).fields
        assert options.type == (idl.LIST, (idl.STRUCT, example.Options))
        assert kind.type == (idl.I32, example.Kind)
        [success] = idl.schema_of(look.answer).fields
        assert success.type == (idl.STRUCT, example.Options)

    def test_what_is_written_is_read(self, other, example):
        written = other["Twice"](example.Options(1), {"a": [example.Kind.FIRST]})
        assert reader.decode(other["Twice"], writer.encode(written)) == written


class TestExceptions:
    def test_exception_shows_its_message(self, example):
        with pytest.raises(example.MissingException, match=r"^a is not alive$") as caught:
            raise example.MissingException("a is not alive")
        assert repr(caught.value) == "MissingException(msg='a is not alive')"

    def test_exception_without_message_shows_its_fields(self, example):
        busy = example.BusyException(example.Options(1), ["a"])
        assert str(busy) == repr(busy)
        assert "names=['a']" in str(busy)

    def test_exceptions_compare_by_value(self, example):
        for one in (
            example.MissingException("a"),
            example.BusyException(example.Options(1), ["a"]),
        ):
            for other in (copy.copy(one), pickle.loads(pickle.dumps(one))):
                assert other == one
                assert hash(other) == hash(one)
            assert one not in (example.MissingException("b"), example.BusyException(None, None))
