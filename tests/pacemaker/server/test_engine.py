"""Which engine runs, and what is said of it."""

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

import stormkeeper.pacemaker.server as package
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.server.asyncio_channels import AsyncioChannels
from stormkeeper.pacemaker.server.pacemaker_server import load_engine
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from support.engines import ENGINES

MODULE = "stormkeeper.pacemaker.server._compiled"


def test_interpreted_engine_is_always_available():
    engine = load_engine("interpreted")
    assert engine[2:] == (PulseIndex, AsyncioChannels)
    assert engine.description == "interpreted (as pacemaker.engine says)"


def test_compiled_engine_is_built_where_possible():
    """So that one that does not compile is seen: what is to be skipped without it is many tests."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if sys.platform != "linux" or shutil.which("cc") is None or not headers.exists():
        pytest.skip("no C compiler, or no headers of Python")
    assert "compiled" in ENGINES, "make setup builds it"


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
@pytest.mark.parametrize("choice", ["auto", "compiled"])
def test_compiled_engine_is_loaded_where_built(choice):
    engine = load_engine(choice)
    assert engine.name == engine.description == "compiled"
    assert engine.pulse_index is sys.modules[MODULE].PulseIndex


@pytest.mark.parametrize("choice", ENGINES)
def test_tls_uses_asyncio_channels(choice):
    engine = load_engine(choice).over_tls()
    assert engine.channels is AsyncioChannels
    assert engine.pulse_index is load_engine(choice).pulse_index
    assert engine.name.startswith("interpreted")
    assert engine.description.startswith("interpreted (")
    if choice == "compiled":
        assert engine.name == engine.description == "interpreted (TLS is served in plain Python)"


def without_the_module(monkeypatch):
    monkeypatch.setitem(sys.modules, MODULE, None)
    monkeypatch.delattr(package, "_compiled", raising=False)


def test_auto_without_the_compiled_engine_is_interpreted(monkeypatch):
    without_the_module(monkeypatch)
    engine = load_engine("auto")
    assert engine.name == "interpreted"
    assert "no C compiler was there when stormkeeper was installed" in engine.description


def test_missing_compiled_engine_error_names_the_remedy(monkeypatch):
    without_the_module(monkeypatch)
    with pytest.raises(ConfigError, match=r"pacemaker\.engine: .*install a C compiler.*set auto"):
        load_engine("compiled")


def test_unloadable_engine_differs_from_a_missing_one(monkeypatch, tmp_path):
    without_the_module(monkeypatch)
    monkeypatch.delitem(sys.modules, MODULE)
    (tmp_path / "_compiled.py").write_text("raise ImportError('undefined symbol: x')")
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    assert "cannot be loaded: undefined symbol" in load_engine("auto").description
