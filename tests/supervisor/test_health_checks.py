"""The operator's own checks."""

import os
import signal

import pytest

from stormkeeper import conf
from stormkeeper.supervisor import health_checks, process_table
from stormkeeper.supervisor.health_checks import FailedCheck, HealthWatch, describe_failures
from support.disks import room_for
from support.packages import tree
from support.waiting import until


@pytest.fixture
def write(tmp_path):
    def write(name, text, mode=0o755):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)

    return write


def run(tmp_path, timeout_secs=60.0, fail_on_timeouts=True):
    return health_checks.run(tmp_path, timeout_secs=timeout_secs, fail_on_timeouts=fail_on_timeouts)


def test_without_checks_a_machine_is_healthy(tmp_path):
    assert run(tmp_path) == []
    assert run(tmp_path / "none") == []


def test_the_exit_code_decides_and_not_what_is_printed(tmp_path, write):
    write("a", "#!/bin/sh\necho ERROR all is lost\n")
    write("b", "#!/bin/sh\necho fine; echo one; echo disk 3 is full >&2; echo; exit 7\n")
    write("c", "#!/bin/sh\nkill -9 $$\n")
    write("d", "#!/bin/sh\nexit 1\n", mode=0o644)
    (tmp_path / "e").mkdir()
    assert run(tmp_path) == [
        FailedCheck("b", "it ended with exit code 7: disk 3 is full"),
        FailedCheck("c", "it ended by SIGKILL"),
    ]


def test_what_cannot_be_run_has_failed(tmp_path, write):
    write("a", "#!/no/such/interpreter\n")
    write("b", "\x7fELF no")
    assert [one.name for one in run(tmp_path)] == ["a", "b"]
    assert run(tmp_path)[0].reason == "it cannot be run: No such file or directory"


def test_a_name_that_is_no_utf8_can_be_told(tmp_path, write):
    write(os.fsdecode(b"disk\xff.sh"), "#!/bin/sh\nexit 1\n")
    assert [one.name for one in run(tmp_path)] == ["disk\\udcff.sh"]


def test_slow_check_fails_unless_allowed(tmp_path, write):
    write("a", f"#!/bin/sh\necho $$ > {tmp_path}/pid; sleep 600 & wait\n")
    (failed,) = run(tmp_path, timeout_secs=3)
    assert failed == FailedCheck("a", "it was not done after 3 s")
    session = int((tmp_path / "pid").read_text())

    def left():
        table = process_table.snapshot().values()
        return [one for one in table if one.session == session and not one.has_ended]

    until(lambda: not left())
    assert run(tmp_path, timeout_secs=0.5, fail_on_timeouts=False) == []


def test_what_a_check_leaves_in_the_background_is_not_waited_for(tmp_path, write):
    write("a", f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/pid; exit 1\n")
    assert run(tmp_path) == [FailedCheck("a", "it ended with exit code 1")]
    process = process_table.find(int((tmp_path / "pid").read_text()))
    process_table.send(process.id, signal.SIGKILL)


def test_checks_run_at_the_same_time(tmp_path, write):
    for one, other in ("ab", "ba"):
        wait = f"while ! [ -e {tmp_path}/{other}.on ]; do sleep 0.05; done"
        write(one, f"#!/bin/sh\ntouch {tmp_path}/{one}.on\n{wait}\n")
    assert run(tmp_path) == []


def test_much_output_is_no_trouble(tmp_path, write):
    write("a", "#!/bin/sh\nhead -c 5000000 /dev/zero; echo; echo last; exit 1\n")
    assert run(tmp_path) == [FailedCheck("a", "it ended with exit code 1: last")]


def test_checks_of_a_configuration(tmp_path, write):
    write("a", "#!/bin/sh\nexit 1\n")
    chosen = conf.defaults().with_values({"storm.health.check.dir": str(tmp_path)})
    assert [one.name for one in health_checks.check(chosen)] == ["a"]
    assert health_checks.check(chosen.with_values({"storm.health.check.dir": None})) == []
    assert chosen["storm.health.check.timeout.ms"] == 5000
    assert chosen["storm.health.check.fail.on.timeouts"] is True


def test_each_round_is_told_and_each_change_is_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    tree(tmp_path, {"disk.sh": "#!/bin/sh\ntest ! -e full\n"})
    check = tmp_path / "disk.sh"
    check.chmod(0o700)
    chosen = conf.defaults().with_values({"storm.health.check.dir": str(tmp_path)})
    told = []
    watch = HealthWatch(chosen, [tmp_path], told.append)
    watch.check()
    check.write_text("#!/bin/sh\necho / is full\nexit 1\n")
    watch.check()
    watch.check()
    check.write_text("#!/bin/sh\n")
    watch.check()
    reason = "the health check disk.sh failed: it ended with exit code 1: / is full"
    assert told == [None, reason, reason, None]
    assert [record.getMessage() for record in caplog.records] == [
        f"this machine takes no new work: {reason}",
        "this machine passes its health checks again, and takes new work",
    ]


def test_a_disk_that_takes_no_files_is_told_before_any_check(tmp_path):
    told = []
    gone = tmp_path / "gone"
    watch = HealthWatch(conf.defaults(), [tmp_path, gone, gone], told.append)
    watch.check()
    gone.mkdir()
    watch.check()
    with room_for(100):
        watch.check()
    assert told[1] is None
    missing, full = told[0], told[2]
    assert missing == (
        f"{gone} cannot be written to (No such file or directory): create the folder, or mount its"
        " disk"
    )
    assert full.startswith(f"{tmp_path} cannot be written to (File too large)")
    assert f"; {gone} cannot" in full


def test_several_failures_are_one_text():
    assert describe_failures([]) is None
    text = describe_failures(
        [FailedCheck("a.sh", "it hangs"), FailedCheck("b.sh", "it cannot be run")]
    )
    assert (
        text
        == "the health check a.sh failed: it hangs; the health check b.sh failed: it cannot be run"
    )
