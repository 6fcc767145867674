import functools

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.topology import Component

SERVICES = {"spark": "the session", "conf": "the conf"}


def call(function, *inputs):
    """What a bolt with as many inputs is called with."""
    component = Component("c", "bolt", function, [f"i{n}" for n in range(len(inputs))])
    positional, keywords = component.arguments(inputs, SERVICES)
    return component(*positional, **keywords)


def test_inputs_in_order_and_services_by_name():
    assert call(lambda a, b: (a, b), 1, 2) == (1, 2)
    assert call(lambda a, conf, b, spark: (a, b, conf, spark), 1, 2) == (
        1,
        2,
        "the conf",
        "the session",
    )


def test_keyword_only_services():
    def bolt(a, *, conf):
        return a, conf

    assert call(bolt, 1) == (1, "the conf")


def test_defaults_stay():
    def bolt(a, top=10, *, least=3):
        return a, top, least

    assert call(bolt, 1) == (1, 10, 3)
    assert call(bolt, 1, 2) == (1, 2, 3)


def test_any_number_of_inputs():
    def bolt(first, *others, spark, **more):
        return first, others, spark, more

    assert call(bolt, 1, 2, 3) == (1, (2, 3), "the session", {})


def test_positional_only_parameters():
    def bolt(a, conf, /):
        return a, conf

    assert call(bolt, 1) == (1, "the conf")


def test_function_that_says_nothing_about_itself():
    assert call(max, 1, 2) == 2


def test_what_is_called_may_be_an_object():
    class Filter:
        def __call__(self, a, conf):
            return a, conf

    assert call(Filter(), 1) == (1, "the conf")


def test_parameter_too_many():
    with pytest.raises(TopologyError, match=r"bolt 'c' has nothing to give to its parameter 'b'"):
        call(lambda a, b: (a, b), 1)
    with pytest.raises(TopologyError, match=r"parameters 'b', 'z': it reads from 'i0'"):
        call(lambda a, b, *, z: (a, b, z), 1)


def test_parameter_too_few():
    with pytest.raises(TopologyError, match=r"reads from 'i0', 'i1', .* 1 parameter too few"):
        call(lambda a, spark: (a, spark), 1, 2)


def test_spout_that_asks_for_an_input():
    with pytest.raises(
        TopologyError, match=r"spout 's' has nothing .* 'lines'.*`spark` and `conf`"
    ):
        Component("s", "spout", lambda lines: lines)


def test_the_place_of_a_function_is_that_of_the_innermost():
    def lines(spark):
        return spark

    @functools.wraps(lines)
    def wrapped(spark):
        return lines(spark)

    line = lines.__code__.co_firstlineno
    for function in (lines, wrapped):
        assert Component("lines", "spout", function).place == f"{__file__}, line {line}"
    assert Component("length", "bolt", len, ["lines"]).place == ""
