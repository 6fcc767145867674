"""What a topology is called before anybody has run its script."""

import pytest

from stormkeeper.errors import LocalClusterError
from stormkeeper.local.naming import declared_name, storm_id

IMPORT = "from stormkeeper.topology import Topology\n"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (IMPORT + "topology = Topology('word-count', conf={'a': 1})", "word-count"),
        (IMPORT + "topology = Topology(conf={}, name='word.count_2')", "word.count_2"),
        (IMPORT + "def make():\n    return Topology('made')\nmake()", "made"),
        (IMPORT + "t = Topology('same', {}) if 1 else Topology('same')", "same"),
        ("from stormkeeper.topology import Topology as T\nT('renamed')", "renamed"),
        ("from stormkeeper.topology.topology import Topology\nTopology('deep')", "deep"),
        ("from stormkeeper import topology\ntopology.Topology('module')", "module"),
        ("import stormkeeper.topology\nstormkeeper.topology.Topology('path')", "path"),
        ("import stormkeeper.topology as st\nst.Topology('short')", "short"),
    ],
)
def test_the_name_that_the_code_gives(script, name):
    assert declared_name(script.encode()) == name


@pytest.mark.parametrize(
    "script",
    [
        "",
        "print('no topology')",
        "class Topology:\n    pass\nTopology('of somebody else')",
        "from elsewhere import Topology\nTopology('other')",
        "from .topology import Topology\nTopology('relative')",
        IMPORT + "NAME = 'x'\nTopology(NAME)",
        IMPORT + "Topology(*['x'])",
        IMPORT + "Topology(7)",
        IMPORT + "Topology()",
        IMPORT + "Topology('a')\nTopology('b')",
        IMPORT + "Topology('a')\nTopology(f'{a}')",
        IMPORT + "Topology('no/name')",
        IMPORT + "Topology('unfinished'",
        IMPORT + "Topology('zero\0')",
    ],
)
def test_no_name_where_it_is_not_clear(script):
    assert declared_name(script.encode()) is None


def test_an_id_in_storm_s_form(tmp_path):
    script = tmp_path / "my topology.v2.py"
    script.write_text(IMPORT + "Topology('word-count')")
    assert storm_id(script, 1700000000.9) == "word-count-1-1700000000"
    script.write_text("print('any script')")
    assert storm_id(script, 1700000000.9) == "my-topology-v2-1-1700000000"


def test_the_source_is_warned_of_only_where_it_runs(tmp_path, recwarn):
    script = tmp_path / "script.py"
    script.write_text(IMPORT + r"Topology('word-count'); '\W'")
    assert storm_id(script, 1) == "word-count-1-1"
    assert not recwarn.list


def test_a_script_that_cannot_be_read(tmp_path):
    with pytest.raises(LocalClusterError, match="cannot be read"):
        storm_id(tmp_path, 1)
