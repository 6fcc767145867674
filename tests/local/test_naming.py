"""What a topology is called before anybody has run its script."""

import pytest

from stormkeeper.errors import LocalClusterError
from stormkeeper.local.naming import storm_id

IMPORT = "from stormkeeper.topology import Topology\n"


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
