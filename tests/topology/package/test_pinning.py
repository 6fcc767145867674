"""Versions that pip chooses, over what a cluster has and nothing else that is installed here."""

import hashlib
from importlib import metadata

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.package.environment import Base, parse, pin, pins_fault
from support.packages import wheel
from support.waiting import DEADLINE_SECS

BASE = Base.here()
DATA = {"x.py": ""}


def pinned(text):
    required = parse(text, "requirements.txt", BASE.versions)
    pins = pin(required, BASE, file="requirements.txt", secs=DEADLINE_SECS)
    assert pins_fault(pins) is None
    return pins


def test_nothing_is_required():
    assert pinned("pyspark\n") == ()


def test_all_that_must_be_installed_is_pinned(index):
    requires = ["helper<3", "pyspark>=4", "numpy", "absent; extra == 'more'"]
    wheel(index, "tiny", "1.0", DATA, requires=requires)
    wheel(index, "helper", "2.0", DATA)
    wheel(index, "helper", "3.0", DATA)
    wheel(index, "numpy", "99.0", DATA)
    # Of what the cluster has, only what is asked for by name is pinned.
    numpy = f"numpy=={metadata.version('numpy')}"
    asked = "tiny\nnumpy\nabsent==1; python_version<'3'"
    assert pinned(asked) == ("helper==2.0", numpy, "tiny==1.0")
    assert pinned("numpy>98") == ("numpy==99.0",)


@pytest.mark.usefixtures("index")
def test_what_is_installed_here_alone_is_not_there():
    assert metadata.version("hypothesis")
    with pytest.raises(
        TopologyError,
        match=r"^the requirements of requirements.txt cannot be pin"
        r"ned: pip ended with exit code 1:\n[^$]*No matching .* for hypothesis",
    ):
        pinned("hypothesis")


def test_requirements_that_the_cluster_does_not_allow(index):
    wheel(index, "old", "1.0", DATA, requires=["pyspark<4"])
    said = r"install -r requirements.txt \(line 2\) because"
    with pytest.raises(TopologyError, match=rf"(?s)old 1\.0 depends on pyspark<4.*{said}"):
        pinned("# a comment\nold")


def test_hashes_stay(index):
    digest = hashlib.sha256(wheel(index, "tiny", "1.0", DATA).read_bytes()).hexdigest()
    line = f"tiny==1.0 --hash=sha256:{digest}"
    assert pinned(line) == (line,)
