"""The log's lines, as another process reads them."""

import logging
import re
import subprocess
import sys

PROGRAM = """
import logging
from stormkeeper.daemon.logs import configure_logging
configure_logging()
configure_logging()
log = logging.getLogger("stormkeeper.test")
log.debug("not shown")
log.warning("value %r and %s", "/a", "two\\nlines\\r")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
configure_logging("DEBUG")
log.debug("shown now")
"""


def test_one_line_a_record_on_stderr():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=30
    )
    assert run.stdout == ""
    first, failed, *traceback, last = run.stderr.splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(stamp + r" WARNING stormkeeper\.test value '/a' and two\\nlines\\r", first)
    assert re.fullmatch(stamp + r" ERROR stormkeeper\.test failed", failed)
    assert traceback[0].startswith("Traceback")
    assert traceback[-1] == "ZeroDivisionError: division by zero"
    assert last.endswith("DEBUG stormkeeper.test shown now")


def test_a_library_may_log_without_it():
    assert logging.getLogger("stormkeeper").handlers == []
