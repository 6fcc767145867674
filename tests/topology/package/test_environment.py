"""The identity of an environment: the same for the same, another for anything else."""

import platform
import re
import subprocess
import sys
from importlib import metadata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stormkeeper
from stormkeeper.errors import TopologyError
from stormkeeper.topology.package.environment import Base, identity
from support.waiting import DEADLINE_SECS

BASE = Base("3.11.7", "cpython-311-x86_64-linux-gnu", "linux-x86_64", "0.1.0", "4.3.0")
PINS = ("requests==2.32.5", "six==1.17.0")


def test_what_it_is():
    assert re.fullmatch("[0-9a-f]{32}", identity(PINS, BASE))
    assert identity(PINS, BASE) == identity(PINS[::-1] * 2, BASE)


@pytest.mark.parametrize("field", Base.__struct_fields__)
def test_another_base_makes_another(field):
    other = msgspec.structs.replace(BASE, **{field: "other"})
    assert identity(PINS, other) != identity(PINS, BASE)


LISTS = st.lists(st.text(max_size=4), min_size=1, max_size=4)


@given(LISTS, LISTS, LISTS, LISTS)
def test_it_is_one_of_the_sets(pins, wheels, other_pins, other_wheels):
    same = (set(pins), set(wheels)) == (set(other_pins), set(other_wheels))
    first, second = identity(pins, BASE, wheels), identity(other_pins, BASE, other_wheels)
    assert (first == second) is same


def test_one_of_nothing():
    with pytest.raises(TopologyError, match="an environment without requirements is not built"):
        identity([], BASE)


def test_the_base_of_this_process():
    base = Base.here()
    assert base.python == platform.python_version()
    assert f"{sys.version_info.major}{sys.version_info.minor}" in base.abi
    assert base.versions == {
        "pyspark": metadata.version("pyspark"),
        "stormkeeper": stormkeeper.__version__,
    }
    program = "from stormkeeper.topology.package.environment import Base; print(Base.here())"
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=True,
    )
    assert said.stdout.strip() == repr(base)
