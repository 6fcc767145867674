"""Which engine decodes."""

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

import stormkeeper.pipeline.decoding as package
from stormkeeper.pipeline.decoding.engine import INTERPRETED, load
from support.decoding import ENGINES

MODULE = "stormkeeper.pipeline.decoding._compiled"


def test_the_compiled_one_is_built_where_it_can_be():
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if sys.platform != "linux" or shutil.which("cc") is None or not headers.exists():
        pytest.skip("no C compiler, or no headers of Python")
    assert "compiled" in ENGINES, "make setup builds it"


def test_without_it_plain_python_decodes(monkeypatch):
    monkeypatch.setitem(sys.modules, MODULE, None)
    monkeypatch.delattr(package, "_compiled", raising=False)
    assert load() is INTERPRETED


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
def test_a_builder_that_has_finished_takes_no_more():
    builder = ENGINES["compiled"].builder()
    builder.refuse("no")
    assert builder.finish()["error"].to_pylist() == ["no"]
    for call in (builder.finish, lambda: builder.refuse(None), lambda: builder.add(b"")):
        with pytest.raises(ValueError, match="has finished"):
            call()
