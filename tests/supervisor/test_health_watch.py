"""Health checks that are run again and again."""

from stormkeeper import conf
from stormkeeper.supervisor.health import FailedCheck, HealthWatch, describe_failures
from support.disks import room_for
from support.packages import tree


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
