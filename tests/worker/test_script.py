import importlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from stormkeeper.errors import TopologyError, WorkerError
from stormkeeper.topology import Topology
from stormkeeper.topology.plan import plan
from stormkeeper.worker import script as scripts


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a script; what running it changes in this process is undone."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def run(path):
    made = []
    return scripts.run(path, made.append), made


def test_it_runs_as_the_main_program(script):
    path = script("import sys\nseen = (__name__, __file__, sys.argv, sys.path[0])\n")
    scripts.prepare(path)
    names, _ = run(path)
    assert names["seen"] == ("__main__", str(path), [str(path)], str(path.parent))


def test_it_stays_the_main_program(script):
    names, _ = run(script("def function(): pass\n"))
    assert sys.modules["__main__"].function is names["function"]
    assert names["function"].__module__ == "__main__"


def test_modules_beside_script_import_everywhere(script):
    path = script("import beside\n")
    path.with_name("beside.py").write_text("value = 1\n")
    scripts.prepare(path)
    run(path)
    assert os.environ["PYTHONPATH"] == f"{path.parent}{os.pathsep}/elsewhere"
    del sys.modules["beside"]


@pytest.mark.usefixtures("script")
def test_in_a_package_the_packages_folder_is_first(tmp_path):
    root = tmp_path / "code"
    (root / "jobs").mkdir(parents=True)
    (root / "helping.py").write_text("value = 1\n")
    (root / "jobs" / "beside.py").write_text("import helping\nvalue = helping.value + 1\n")
    path = root / "jobs" / "daily.py"
    path.write_text(
        "import sys\nfrom . import beside\nseen = beside.value, __name__, sys.path[0]\n"
    )
    scripts.prepare(path, root=root)
    names = scripts.run(path, [].append, root)
    assert names["seen"] == (2, "__main__", str(root))
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(root)
    for name in ("helping", "jobs", "jobs.beside"):
        del sys.modules[name]


def test_its_arguments_are_its_argv(script):
    path = script("import sys\nseen = sys.argv\n")
    scripts.prepare(path, ["-c", "b"])
    names, _ = run(path)
    assert names["seen"] == [str(path), "-c", "b"]


def test_only_named_py_files_are_importable(script, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "single.py").write_text("value = 1\n")
    (elsewhere / "unasked.py").write_text("value = 2\n")
    with zipfile.ZipFile(elsewhere / "more.zip", "w") as archive:
        archive.writestr("packed/__init__.py", "value = 3\n")
    path = script("import single, packed\nseen = single.value, packed.value\n")
    scripts.prepare(path, [], [elsewhere / "single.py", elsewhere / "more.zip"])
    names, _ = run(path)
    assert names["seen"] == (1, 3)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("unasked")
    for name in ("single", "packed"):
        del sys.modules[name]


def test_source_fault_is_found_before_the_script_runs(script, tmp_path):
    path = script(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(:\n")
    with pytest.raises(TopologyError, match=r"script\.py, line 2: invalid syntax"):
        scripts.prepare(path)
    assert not (tmp_path / "ran").exists()


def test_no_such_file_to_import(script, tmp_path):
    with pytest.raises(WorkerError, match=r"there is no file .*none.py"):
        scripts.prepare(script(""), [], [tmp_path / "none.py"])


def test_future_imports_of_ours_are_not_the_scripts(script):
    names, _ = run(script("def f(x: int): pass\nkind = f.__annotations__['x']\n"))
    assert names["kind"] is int


def test_declared_topologies_are_reported_at_once(script):
    names, made = run(
        script("from stormkeeper.topology import Topology\nmine = Topology('a')\nTopology('b')\n")
    )
    assert [t.name for t in made] == ["a", "b"]
    assert names["mine"] is made[0]


@pytest.mark.parametrize("code", ["", "0", "None"])
def test_an_exit_in_peace_is_an_end(script, code):
    names, _ = run(script(f"import sys\nvalue = 1\nsys.exit({code})\n"))
    assert names["value"] == 1


@pytest.mark.parametrize(("code", "said"), [("3", "3"), ("'no room'", "'no room'")])
def test_another_exit_is_a_failure(script, code, said):
    with pytest.raises(WorkerError, match=f"exited with {said}"):
        run(script(f"import sys\nsys.exit({code})\n"))


def test_exceptions_of_the_script_come_through(script):
    with pytest.raises(KeyError):
        run(script("{}['x']\n"))


def test_no_such_script(tmp_path):
    with pytest.raises(WorkerError, match="there is no script"):
        scripts.prepare(tmp_path / "none.py")


def test_the_line_of_an_error(script):
    path = script("from stormkeeper.topology import Topology\n\nTopology('a b')\n")
    with pytest.raises(TopologyError) as caught:
        run(path)
    assert scripts.line_of(caught.value, path) == ", line 3"
    assert scripts.line_of(ValueError(), path) == ""


def test_topology_that_a_script_defines(tmp_path):
    one, other = Topology("one"), Topology("other")
    path = tmp_path / "s.py"
    assert scripts.the_topology({}, [], path) is None
    assert scripts.the_topology({"a": one, "b": one, "c": 5}, [one], path) is one
    assert scripts.the_topology({}, [one], path) is one
    # One that an imported module made for itself does not count beside one that has a name here.
    assert scripts.the_topology({"a": one}, [other, one], path) is one


def test_several_topologies_are_an_error_that_names_them(tmp_path):
    one, other = Topology("one"), Topology("other")
    with pytest.raises(TopologyError, match=r"defines 2 topologies .*'one', 'other'"):
        scripts.the_topology({"a": one, "b": other}, [one, other], tmp_path)
    with pytest.raises(TopologyError, match="defines 2 topologies"):
        scripts.the_topology({}, [one, other], tmp_path)


USES = """
from stormkeeper.topology import Topology

topology = Topology("odd")

@topology.spout
def lines(spark):
    return spark.readStream.load()

@topology.bolt(lines)
def out(lines):
    return lines.writeStream.format("noop")
"""

MAKES = 'from stormkeeper.topology import Topology\ntopology = Topology("odd")\n'
READS = "\n@topology.bolt('lines')\ndef out(lines):\n    return lines.writeStream\n"
SPOUT = "topology.spout(name='lines')(lambda spark: spark)\n"


def in_front(statements):
    """Statements between the topology and its components."""
    return USES.replace("\n@topology.spout", f"\n{statements}\n@topology.spout")


#: Scripts that are unusual, and right.
ODD = {
    "a spout by a call": MAKES + SPOUT + READS,
    "spouts by a function": MAKES
    + "def add(t):\n    t.spout(name='lines')(lambda spark: spark)\nadd(topology)\n"
    + READS,
    "spouts by a function that knows the name": MAKES
    + "def add():\n    @topology.spout\n    def lines(spark): pass\nadd()\n"
    + READS,
    "spouts in a loop": MAKES
    + "for name in ('lines', 'others'):\n    topology.spout(name=name)(lambda spark: spark)\n"
    + "@topology.bolt('others')\ndef more(others):\n    return others.writeStream\n"
    + READS,
    "spouts in a comprehension": MAKES
    + "made = [topology.spout(name=n)(lambda spark: spark) for n in ['lines']]\n"
    + READS,
    "a decorator of one's own": USES.replace("@topology.spout", "@mine").replace(
        "@mine", "def mine(f):\n    return topology.spout(f)\n\n@mine"
    ),
    "a decorator kept": USES.replace("@topology.spout", "spout = topology.spout\n@spout"),
    "decorators stacked": USES.replace(
        "@topology.spout", "def same(f):\n    return f\n\n@topology.spout\n@same"
    ),
    "a decorator that changes the parameters": USES.replace(
        "@topology.bolt(lines)\ndef out(lines)",
        "def given(f):\n    return lambda lines: f(lines, 1)\n\n"
        "@topology.bolt(lines, name='out')\n@given\ndef out(lines, more)",
    ),
    "a decorator on a spout that is an input": USES.replace(
        "@topology.bolt(lines)",
        "def renamed(f):\n    return lines\n\n@renamed\ndef other():\n    pass\n\n"
        "@topology.bolt(other)",
    ),
    "another name for it": USES.replace("\n@topology.bolt", "\nt = topology\n@t.bolt"),
    "the name used twice": USES
    + "\nkeep = topology\ntopology = keep\n@topology.bolt(lines)\ndef more(lines):\n"
    + "    return lines.writeStream\n",
    "one after the other, where one has the name": USES.replace(
        'topology = Topology("odd")',
        'topology = Topology("first")\ntopology = Topology("odd")',
    ),
    "made on a condition": USES.replace(
        'topology = Topology("odd")',
        'if __name__ == "__main__":\n    topology = Topology("odd")\n'
        'else:\n    topology = Topology("not good")',
    ),
    "components on a condition": MAKES
    + "if topology.name == 'odd':\n    @topology.spout\n    def lines(spark): pass\n"
    + "else:\n    @topology.spout(parallelism=0)\n    def lines(spark): pass\n"
    + READS,
    "components under try": MAKES
    + "try:\n    @topology.bolt('lines')\n    def early(lines): pass\nexcept Exception:\n    "
    + SPOUT
    + READS,
    "components in a class": MAKES
    + "class Job:\n    @topology.spout\n    def lines(spark): pass\n    source = lines\n\n"
    + "@topology.bolt(Job.source)\ndef out(lines):\n    return lines.writeStream\n",
    "components by match": MAKES
    + "match {'lines': 1}:\n    case {**liens}:\n        "
    + SPOUT
    + READS.replace("'lines'", "*liens"),
    "a name by match": in_front("").replace(
        "@topology.bolt(lines)",
        "match {'lines': lines}:\n    case {**liens}:\n        liens = liens['lines']\n"
        "@topology.bolt(liens)",
    ),
    "the rest by match": USES.replace("def lines(", "def liens(").replace(
        "@topology.bolt(lines)",
        "match {}:\n    case {**rest}:\n        pass\nrest = liens\n@topology.bolt(rest)",
    ),
    "a name by walrus": USES.replace(
        "@topology.bolt(lines)", "print(liens := lines)\n@topology.bolt(liens)"
    ),
    "a name by walrus in a default": USES.replace(
        "@topology.bolt(lines)",
        "def other(a=(liens := lines)):\n    pass\n@topology.bolt(liens)",
    ),
    "an input by walrus": USES.replace("bolt(lines)", "bolt(liens := lines)"),
    "a name by global": USES.replace(
        "@topology.bolt(lines)",
        "def name():\n    global liens\n    liens = lines\nname()\n@topology.bolt(liens)",
    ),
    "a name changed by global": USES.replace(
        "@topology.bolt(lines)",
        "def other(): pass\ndef name():\n    global other\n    other = lines\nname()\n"
        "@topology.bolt(other)",
    ),
    "a name by globals": USES.replace(
        "@topology.bolt(lines)", "globals()['liens'] = lines\n@topology.bolt(liens)"
    ),
    "a name by exec": USES.replace(
        "@topology.bolt(lines)", "exec('liens = lines')\n@topology.bolt(liens)"
    ),
    "a spout by exec": MAKES + f"exec({SPOUT!r})\n" + READS,
    "a spout by globals": MAKES
    + "globals()['topology'].spout(name='lines')(lambda spark: spark)\n"
    + READS,
    "a spout by __main__": MAKES
    + "import __main__\n__main__.topology.spout(name='lines')(lambda spark: spark)\n"
    + READS,
    "a spout by sys.modules": MAKES
    + "import sys\nsys.modules[__name__].topology.spout(name='lines')(lambda spark: spark)\n"
    + READS,
    "a name in a star import": USES.replace("def lines(", "def total(").replace(
        "@topology.bolt(lines)",
        "spouts = total\nfrom spouts_beside import *\n@topology.bolt(total_of(topology))",
    ),
    "spouts in a module that is imported later": MAKES + "import spouts_of_main\n" + READS,
    "spouts in a module that is imported by a function": MAKES
    + "def load():\n    import spouts_of_main\nload()\n"
    + READS,
    "spouts by a module's function": "import spouts_beside\n"
    + MAKES
    + "spouts_beside.add_to_main()\n"
    + READS,
    "spouts by a module's decorator": "from spouts_beside import adding_to_main\n"
    + MAKES
    + "@adding_to_main\ndef settings(): pass\n"
    + READS,
    "spouts by a module's function in a default": "from spouts_beside import add_to_main as add\n"
    + MAKES
    + "def settings(a=add()): pass\n"
    + READS,
    "spouts by a module's function in a class": "from spouts_beside import add_to_main as add\n"
    + MAKES
    + "class Settings:\n    value = add()\n"
    + READS,
    "spouts by a module's function in a parallelism": "from spouts_beside import one_for_main\n"
    + MAKES
    + "@topology.spout(parallelism=one_for_main())\ndef others(spark): pass\n"
    + READS.replace("'lines'", "'lines', 'others'").replace("(lines)", "(lines, others)"),
    "an end in front of a fault": "import sys\n" + USES + "\nsys.exit(0)\ntopology.bolt(nothing)\n",
    "an end in front of a wrong bolt": USES + "\nexit()\n@topology.bolt(nothing)\ndef f(): pass\n",
    "an end by exception": USES + "\nraise SystemExit\n@topology.bolt(nothing)\ndef f(): pass\n",
    "an end by a function": USES
    + "\ndef end():\n    raise SystemExit(0)\n\ndef main():\n    end()\n"
    + "if __name__ == '__main__':\n    main()\n@topology.bolt(nothing)\ndef f(): pass\n",
    "an end by an import of another name": "from sys import exit as leave\n"
    + USES
    + "\nleave(0)\n@topology.bolt(nothing)\ndef f(): pass\n",
    "an end in front of an import": USES + "\nquit()\nimport no_such_module\n",
    "made by a function": "from stormkeeper.topology import Topology\n"
    "def make():\n    topology = Topology('made')\n"
    "    @topology.spout\n    def lines(spark): pass\n"
    "    @topology.bolt(lines)\n    def out(lines): return lines\n    return topology\n"
    "mine = make()\n",
    "a class of one's own": USES.replace(
        "\ntopology =",
        "\nclass Lenient(Topology):\n    def bolt(self, *i, **k):\n"
        "        return super().bolt(*self.components, **k)\n\nTopology = Lenient\ntopology =",
    ).replace("bolt(lines)", "bolt()"),
    "a class by the same name": USES.replace(
        "\ntopology =",
        "\nclass Topology(Topology):\n    def bolt(self, *i, **k):\n"
        "        return super().bolt(*self.components, **k)\n\ntopology =",
    ).replace("bolt(lines)", "bolt()"),
    "a class with more methods": USES.replace(
        "\ntopology =",
        "\nTopology.bolt = (lambda old: lambda self, *i, **k: old(self, *self.components))"
        "(Topology.bolt)\n\ntopology =",
    ).replace("bolt(lines)", "bolt()"),
    "a method of its own": USES.replace(
        "\n@topology.bolt(lines)",
        "\nold = topology.bolt\ntopology.bolt = lambda *i: old(lines)\n@topology.bolt()",
    ),
    "a class partly applied": USES.replace(
        "\ntopology =",
        "\nimport functools\nTopology = functools.partial(Topology, 'given')\ntopology =",
    ).replace('Topology("odd")', "Topology({'a b': 1})"),
    "imported where it is there": USES.replace(
        "from stormkeeper.topology import Topology",
        "try:\n    import no_such_module\n    from stormkeeper.topology import Topology\n"
        "except ImportError:\n    from stormkeeper.topology import Topology",
    ),
    "a name by annotation": USES.replace("topology =", "topology: 'Topology' ="),
    "annotations later": "from __future__ import annotations\n"
    + USES.replace("topology =", "topology: Topology =").replace(
        "lines(spark)", "lines(spark: SparkSession) -> Never"
    ),
    "a topology that is a component's default": USES.replace(
        "out(lines)", "out(lines, t=topology)"
    ),
    "defaults take inputs": USES.replace("out(lines)", "out(lines=None, /, *, to=[])"),
    "all inputs in one": USES.replace("out(lines)", "out(*lines, **more)"),
    "services anywhere": USES.replace("out(lines)", "out(conf, lines, *, spark)"),
    "a service with a default": USES.replace("out(lines)", "out(lines, conf=None, spark=None)"),
    "settings computed": USES.replace("@topology.spout", "@topology.spout(parallelism=int('2'))"),
    "settings of another kind": USES.replace(
        "@topology.spout", "@topology.spout(**{'name': 'lines'})"
    ),
    "a name computed": USES.replace('Topology("odd")', 'Topology("-".join(["a", "b"]))'),
    "a function that becomes another": USES.replace(
        "@topology.bolt(lines)", "def other(): pass\nother = lines\n@topology.bolt(other)"
    ),
    "a component by a lambda": USES + "topology.bolt('out', name='more')(lambda out: out)\n",
    "an async function": USES
    + "@topology.bolt(lines)\nasync def later(lines):\n    return lines.writeStream\n",
    "a function changed later": USES.replace("return lines.writeStream", "lines.writeStream")
    + "\nout.function = lambda lines: lines.writeStream\n",
    "a function changed by a function": USES.replace(
        "return lines.writeStream", "lines.writeStream"
    )
    + "\ndef change():\n    out.function = lambda lines: lines.writeStream\nchange()\n",
    "Latin": "# -*- coding: latin-1 -*-\nNAME = 'é'\n" + USES,
    "a byte order mark": "\ufeff" + USES,
    "names in other letters": USES.replace("lines", "ﬁles"),
    "a module brought to be found": "import paths_beside\nimport found_elsewhere\n" + USES,
    "a module from sys.path": "import sys\nsys.path += [sys.path[0] + '/elsewhere']\n"
    "import found_elsewhere\n" + USES,
    "a module that is made": "import types, sys\n"
    "globals()['sys'].modules['made_up'] = types.ModuleType('made_up')\nimport made_up\n" + USES,
    "a module behind an early end": USES + "\nif topology:\n    exit()\nimport no_such_module\n",
    "the main module": "import __main__\n" + USES,
}

BESIDE = {
    "spouts_of_main.py": f"from __main__ import topology\n{SPOUT}",
    "spouts_beside.py": "def add_to_main(*_):\n    from __main__ import topology\n"
    f"    {SPOUT}adding_to_main = add_to_main\n"
    "def one_for_main():\n    add_to_main()\n    return 1\n"
    "def total_of(topology):\n    return next(iter(topology.components))\n",
    "paths_beside.py": "import sys\nsys.path.append(sys.path[0] + '/elsewhere')\n",
    "elsewhere/found_elsewhere.py": "",
}


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Modules that the scripts import; what they do to `Topology` is undone."""
    monkeypatch.setattr(Topology, "bolt", Topology.bolt)
    for name, text in BESIDE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    yield
    for name in [Path(name).stem for name in BESIDE] + ["made_up"]:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("what", ODD)
def test_sources_that_run_are_not_refused(script, what):
    path = script("")
    path.write_text(ODD[what], "latin-1" if what == "Latin" else "utf-8")
    scripts.prepare(path)
    topology = scripts.the_topology(*run(path), path)
    assert topology is not None
    assert plan(topology).queries
