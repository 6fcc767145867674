"""Sizes of memory among Spark's settings are looked at before Spark starts."""

import pytest

from stormkeeper.conf import load
from stormkeeper.conf.key_types import check_spark_size
from stormkeeper.errors import ConfigError


@pytest.mark.parametrize("value", ["lots", "2gb", "2.5g", 2, "2", "0g", "", "-1g", True, ["1g"]])
def test_what_the_jvm_cannot_read_is_no_heap(value):
    with pytest.raises(ConfigError, match="such as 512m or 2g"):
        check_spark_size("spark.driver.memory", value)


@pytest.mark.parametrize("value", ["512m", "2g", "2G", "1t", " 600M ", None])
def test_a_heap(value):
    check_spark_size("spark.driver.memory", value)


@pytest.mark.parametrize("value", ["1g", "1gb", "0", 0, 384, "10MB", None])
def test_a_size_that_spark_reads(value):
    check_spark_size("spark.driver.maxResultSize", value)


@pytest.mark.parametrize("value", ["lots", "1.5g", "1 g", "-1", "", True])
def test_a_size_that_spark_does_not_read(value):
    with pytest.raises(ConfigError, match="expected a size"):
        check_spark_size("spark.executor.memory", value)


def test_other_settings_are_spark_s_own():
    check_spark_size("spark.app.name", "lots")
    check_spark_size("spark.driver.memoryOverheadFactor", 0.1)


def test_the_setting_and_what_it_was_are_named():
    with pytest.raises(ConfigError) as raised:
        load(files=[], overrides=["spark.driver.memory=lots"])
    assert str(raised.value) == (
        "-c: spark.driver.memory: expected a number with k, m, g or t, such as 512m or 2g;"
        " got the text lots"
    )


def test_a_topology_s_own_conf_is_looked_at_as_well():
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory: expected a number"):
        load(files=[]).with_values({"spark.driver.memory": 2})
