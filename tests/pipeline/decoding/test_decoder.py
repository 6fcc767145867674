"""Which engine decodes."""

import logging
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

import stormkeeper.pipeline.decoding as package
from stormkeeper.conf import defaults
from stormkeeper.daemon.lifecycle import StopSignals
from stormkeeper.errors import ConfigError
from stormkeeper.pipeline import process
from stormkeeper.pipeline.decoded_rows import INTERPRETED, load
from support.decoding import ENGINES

MODULE = "stormkeeper.pipeline.decoding._compiled"


def test_the_compiled_one_is_built_where_it_can_be():
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if sys.platform != "linux" or shutil.which("cc") is None or not headers.exists():
        pytest.skip("no C compiler, or no headers of Python")
    assert "compiled" in ENGINES, "make setup builds it"


def test_without_it_plain_python_decodes(monkeypatch):
    without_the_module(monkeypatch)
    assert load() is INTERPRETED


def without_the_module(monkeypatch):
    monkeypatch.setitem(sys.modules, MODULE, None)
    monkeypatch.delattr(package, "_compiled", raising=False)


def messages_of_a_pipeline(caplog):
    """Return what one says that goes no further than to its configuration."""
    caplog.set_level(logging.WARNING, "stormkeeper.pipeline.decoded_rows")
    with StopSignals() as stop, pytest.raises(ConfigError, match=r"pacemaker\.servers"):
        process.serve(defaults().with_values({"pacemaker.servers": []}), stop)
    return caplog.messages


def test_a_pipeline_in_plain_python_says_so_and_what_to_do(monkeypatch, caplog):
    without_the_module(monkeypatch)
    [message] = messages_of_a_pipeline(caplog)
    assert "decoded in plain Python" in message
    assert "no C compiler was there when stormkeeper was installed; install a C" in message


def test_one_that_cannot_be_loaded_is_told_from_none(monkeypatch, tmp_path, caplog):
    without_the_module(monkeypatch)
    monkeypatch.delitem(sys.modules, MODULE)
    (tmp_path / "_compiled.py").write_text("raise ImportError('undefined symbol: x')")
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    [message] = messages_of_a_pipeline(caplog)
    assert "cannot be loaded: undefined symbol: x;" in message


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
def test_a_pipeline_with_the_compiled_one_has_nothing_to_say(caplog):
    assert messages_of_a_pipeline(caplog) == []


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
def test_a_builder_that_has_finished_takes_no_more():
    builder = ENGINES["compiled"].builder()
    builder.refuse("no")
    assert builder.finish()["error"].to_pylist() == ["no"]
    for call in (builder.finish, lambda: builder.refuse(None), lambda: builder.add(b"")):
        with pytest.raises(ValueError, match="has finished"):
            call()
