"""The unit files in deploy/, as systemd reads them and as the daemon and its guide need them."""

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stormkeeper.blobs import peers, sync
from stormkeeper.conf import load
from stormkeeper.nimbus import elector
from stormkeeper.nimbus import process as nimbus
from stormkeeper.pipeline import process
from stormkeeper.supervisor import process_table
from support.command import STORM

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SERVICE, SOCKET = "stormkeeper-pacemaker.service", "stormkeeper-pacemaker.socket"
PIPELINE = "stormkeeper-pipeline.service"
SUPERVISOR = "stormkeeper-supervisor.service"
NIMBUS = "stormkeeper-nimbus.service"


def unit(name):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / name)
    return parser


@pytest.fixture
def units(tmp_path):
    """The units with the command of this checkout, so that it exists."""
    for source in (DEPLOY / name for name in (SERVICE, SOCKET, PIPELINE, SUPERVISOR, NIMBUS)):
        text = source.read_text().replace("/opt/stormkeeper/bin/storm", str(STORM))
        (tmp_path / source.name).write_text(text)
    return [str(path) for path in sorted(tmp_path.iterdir())]


def systemd_analyze(*arguments):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_systemd_finds_nothing_wrong(units):
    # Units of the machine's own that are wrong are not our matter.
    checked = systemd_analyze("verify", *units)
    # What is of systemd 254 an older one passes over.
    lines = [line for line in checked.stderr.splitlines() if "stormkeeper" in line]
    older = [line for line in lines if "Unknown key" in line and "'DelegateSubgroup'" in line]
    assert [line for line in lines if line not in older] == []


@pytest.mark.parametrize("which", [SERVICE, NIMBUS])
def test_the_service_is_hardened(units, which):
    [service] = [name for name in units if name.endswith(which)]
    judged = systemd_analyze("security", "--offline=yes", "--threshold=20", service)
    assert judged.returncode == 0, judged.stdout[-2000:]


def test_the_service_fits_the_daemon():
    service = unit(SERVICE)["Service"]
    assert service["Type"] == "notify"
    assert service["ExecStart"].split()[1:] == ["pacemaker", "--log-json"]
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    # Bad configuration is for somebody to mend; a port that is taken may be free soon.
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    assert int(service["TimeoutStopSec"]) > 5  # by itself it stops within that
    assert int(service["LimitNOFILE"]) > 2 * 72_000  # the workers of the largest clusters


def test_the_socket_fits_the_daemon():
    socket = unit(SOCKET)["Socket"]
    assert int(socket["ListenStream"]) == load(files=())["pacemaker.port"]
    assert socket["Accept"] == "no"
    assert Path(SOCKET).stem == Path(SERVICE).stem  # so systemd knows whom it is for


def test_the_service_of_the_pipeline_fits_it():
    service = unit(PIPELINE)["Service"]
    command, *arguments = service["ExecStart"].split()
    assert command == unit(SERVICE)["Service"]["ExecStart"].split()[0]
    assert arguments[:2] == ["pipeline", "--log-json"]
    state = f"/var/lib/{service['StateDirectory']}"
    assert service["WorkingDirectory"] == state
    assert arguments[2:] == ["-c", f"pipeline.tables.dir={state}/tables"]
    assert f"`{state}/tables`" in (ROOT / "docs" / "heartbeat-pipeline.md").read_text()
    # Bad configuration, or no Spark: for somebody to mend.
    assert service["RestartPreventExitStatus"].split() == ["2", str(os.EX_UNAVAILABLE)]
    # A signal to Spark's processes, too, would cut off the batch that is to be finished.
    assert service["KillMode"] == "mixed"
    most = process._STOP_SECS + process._END_SECS
    most += float(process._SPARK_DEFAULTS["spark.sql.streaming.stopTimeout"].removesuffix("s"))
    assert int(service["TimeoutStopSec"]) > most


def test_the_service_of_the_supervisor_fits_it():
    service = unit(SUPERVISOR)["Service"]
    command, *arguments = service["ExecStart"].split()
    assert command == unit(SERVICE)["Service"]["ExecStart"].split()[0]
    assert arguments == ["supervisor", "--log-json"]
    assert service["RestartPreventExitStatus"].split() == ["2", str(os.EX_UNAVAILABLE)]
    # Its workers outlive it: they get no signal with it, nor do they lose their /tmp, nor are all
    # of them ended where the kernel ends one for its memory.
    assert (service["KillMode"], service["Delegate"]) == ("process", "yes")
    assert service["OOMPolicy"] == "continue"
    assert service["DelegateSubgroup"] == process_table.LEAF
    assert "PrivateTmp" not in service
    assert "MemoryMax" not in service


def test_services_agree_on_the_folder_that_they_share():
    # systemd sets the mode at each start: the last one to start would open it to everybody.
    services = [unit(name)["Service"] for name in (PIPELINE, SUPERVISOR, NIMBUS)]
    shared = {(each["StateDirectory"], each.get("StateDirectoryMode")) for each in services}
    assert shared == {("stormkeeper", "0750")}


@pytest.mark.parametrize("name", [SERVICE, NIMBUS, SUPERVISOR, PIPELINE])
def test_no_other_user_reads_what_a_service_writes(name):
    assert unit(name)["Service"]["UMask"] == "0077"


def test_the_service_of_a_nimbus_fits_it():
    service = unit(NIMBUS)["Service"]
    assert service["ExecStart"].split() == [
        unit(SERVICE)["Service"]["ExecStart"].split()[0],
        "nimbus",
        "--log-json",
    ]
    # A relative storm.local.dir is where it may write.
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    # The lead, the calls, and a peer that does not answer.
    most = elector.CLOSE_SECS + nimbus.DRAIN_SECS + peers.ANSWER_SECS + sync._CLOSE_SECS
    assert int(service["TimeoutStopSec"]) > most
    assert f"`deploy/{NIMBUS}`" in (ROOT / "docs" / "nimbus.md").read_text()
