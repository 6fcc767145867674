import json

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.worker import worker_conf


def test_what_is_in_the_file(tmp_path):
    file = tmp_path / "overrides.json"
    values = {"topology.workers": 3, "input": ["a", {"b": None}], "spark.x": True}
    file.write_text(json.dumps(values))
    assert worker_conf.read_overrides(file) == values


@pytest.mark.parametrize("text", ["", "[]", '{"a": ', '"secret"', '{"pass": "secret"'])
def test_error_of_bad_overrides_hides_content(tmp_path, text):
    file = tmp_path / "overrides.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"overrides\.json: expected a JSON object") as refused:
        worker_conf.read_overrides(file)
    assert "secret" not in str(refused.value)


def test_no_such_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        worker_conf.read_overrides(tmp_path / "none.json")


def test_they_win_but_over_what_is_kept():
    values = {"topology.workers": 3, "spark.x": 1}
    conf = worker_conf.with_overrides(defaults(), values, keep={"spark.x"})
    assert conf["topology.workers"] == 3
    assert "spark.x" not in conf


def test_a_wrong_value_says_where():
    with pytest.raises(ConfigError, match=r"saved configuration: topology\.workers: expected"):
        worker_conf.with_overrides(defaults(), {"topology.workers": 0})


def test_credentials_win():
    conf = defaults().with_values({"token": "old", "spark.x": 1})
    assert worker_conf.with_credentials(conf, {"token": "new", "spark.y": "2"})["token"] == "new"


def test_a_credential_that_is_refused_is_not_shown():
    with pytest.raises(ConfigError, match="a credential of the topology") as refused:
        worker_conf.with_credentials(defaults(), {"topology.workers": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert refused.value.__suppress_context__
