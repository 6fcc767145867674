import os
import stat
from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.core import context

from stormkeeper.daemon import spark_properties

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


def test_whatever_java_would_take_for_its_own_is_escaped():
    assert spark_properties.text({"spark.a-b/c_d": "1.5g"}) == "spark.a-b/c_d=1.5g\n"
    text = spark_properties.text({"a b": "#!:=\\\n é😀"})
    assert text == (
        "a\\u0020b=\\u0023\\u0021\\u003a\\u003d\\u005c\\u000a\\u0020\\u00e9\\ud83d\\ude00\n"
    )


@pytest.mark.parametrize("before", [None, "--packages a:b:1 pyspark-shell"])
def test_the_program_is_told_of_a_file_of_ones_own_which_is_gone_afterwards(
    monkeypatch, tmp_path, before
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(ARGUMENTS, raising=False)
    if before is not None:
        monkeypatch.setenv(ARGUMENTS, before)
    launched = []

    def launch(conf, popen_kwargs):
        option, file, also, *rest = os.environ[ARGUMENTS].split(" ", 3)
        assert (option, also) == ("--properties-file", "--load-spark-defaults")
        assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
        launched.append((conf, popen_kwargs, Path(file).read_text(), rest))
        raise RuntimeError("it does not start")

    monkeypatch.setitem(vars(context), "launch_gateway", launch)
    with spark_properties.off_the_command_line(), pytest.raises(RuntimeError, match="not start"):
        context.launch_gateway(SparkConf(loadDefaults=False).set("spark.a", "secret"))
    assert launched == [(None, None, "spark.a=secret\n", [before or "pyspark-shell"])]
    assert list(tmp_path.iterdir()) == []
    assert os.environ.get(ARGUMENTS) == before
    assert context.launch_gateway is launch
