import importlib
import os
import sys
import zipfile

import pytest

from stormkeeper.errors import TopologyError, WorkerError
from stormkeeper.topology import Topology
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


def test_modules_beside_it_can_be_imported_here_and_in_python_workers(script):
    path = script("import beside\n")
    path.with_name("beside.py").write_text("value = 1\n")
    scripts.prepare(path)
    run(path)
    assert os.environ["PYTHONPATH"] == f"{path.parent}{os.pathsep}/elsewhere"
    del sys.modules["beside"]


def test_its_arguments_are_its_argv(script):
    path = script("import sys\nseen = sys.argv\n")
    scripts.prepare(path, ["-c", "b"])
    names, _ = run(path)
    assert names["seen"] == [str(path), "-c", "b"]


def test_modules_that_it_brings_can_be_imported_and_no_others_beside_them(
    script, tmp_path, monkeypatch
):
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


def test_a_fault_in_its_source_is_found_before_it_runs(script, tmp_path):
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


def test_topologies_are_heard_of_while_it_runs(script):
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


def test_what_it_raises_comes_through(script):
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


def test_which_topology_it_is(tmp_path):
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
