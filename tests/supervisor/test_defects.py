"""A supervisor ends at a defect of its own, so that another one begins; its workers go on."""

import pytest

from support.supervisors import PORT, is_alive

pytestmark = pytest.mark.zookeeper

WC = "wc-1-1700000000"

#: Runs a supervisor with a defect, which shows when there is a file.
PROGRAM = """
import sys
from pathlib import Path
from stormkeeper.cli import main
from stormkeeper.supervisor import {module}

def fail(*_, **__):
    if Path({file!r}).exists():
        raise ZeroDivisionError("a defect")
    return whole(*_, **__)

whole, {module}.{name} = {module}.{name}, fail
sys.argv[0] = "storm"
main()
"""


@pytest.mark.parametrize(
    ("module", "name"), [("slot_loop", "find_stopped"), ("registration", "info")]
)
def test_it_ends_with_an_error(leader, supervisor, submit, tmp_path, module, name):
    file = tmp_path / "defect"
    (tmp_path / "with_defect.py").write_text(
        PROGRAM.format(module=module, name=name, file=str(file))
    )
    supervisor.program = (str(tmp_path / "with_defect.py"),)
    node = supervisor.start()
    submit(WC)
    leader.assign(WC, node, PORT, "out")
    start = supervisor.started(WC)
    file.touch()
    assert supervisor.wait() == 1
    assert "ZeroDivisionError: a defect" in supervisor.log
    assert (
        "ERROR stormkeeper.supervisor.process the supervisor ends, and its workers"
        in supervisor.log
    )
    assert is_alive(start["pid"])
