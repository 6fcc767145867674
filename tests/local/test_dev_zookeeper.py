import os
import signal
import socket
import subprocess
import sys
import textwrap

import psutil
import pytest

from stormkeeper.errors import LocalClusterError
from stormkeeper.local import dev_zookeeper
from stormkeeper.local.dev_zookeeper import DevZooKeeper, four_letter_word
from support.outgoing import connected_from
from support.processes import all_gone
from support.waiting import until

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def server(tmp_path):
    server = DevZooKeeper(tmp_path / "zookeeper")
    yield server
    server.stop()


def test_serves_once_started_and_is_gone_once_stopped(server):
    server.start()
    assert str(server.address) == f"127.0.0.1:{server.port}"
    assert "Mode: standalone" in four_letter_word(server.host, server.port, "srvr")
    process = psutil.Process(server.pid)
    assert "java" in process.name()
    server.stop()
    assert not process.is_running()
    assert not server.running
    with pytest.raises(ConnectionRefusedError):
        four_letter_word(server.host, server.port, "srvr")


def test_a_started_server_is_started_again_on_its_port(server):
    server.start()
    first = (server.port, server.pid)
    server.stop()
    server.start()
    assert server.port == first[0]
    assert server.pid != first[1]


@pytest.mark.slow
def test_its_port_is_nobody_elses_while_it_is_down(server):
    server.start()
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    with connected_from([server.port]) as got:
        assert got == []
        server.start()


def test_a_folder_with_any_name(tmp_path):
    with DevZooKeeper(tmp_path / "zoo kéeper \\ x") as server:
        assert server.running


def test_a_suspended_server_can_be_stopped(server):
    server.start()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(grace_secs=60)
    assert server.returncode == 128 + signal.SIGTERM


def test_a_port_in_use_is_a_clear_error_and_leaves_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = DevZooKeeper(tmp_path / "zookeeper", port=port)
        with pytest.raises(LocalClusterError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            server.start()
    assert not server.running


def test_server_that_ends_at_its_start_is_reported_with_its_log(tmp_path):
    (tmp_path / "zookeeper").mkdir()
    (tmp_path / "zookeeper" / "data").write_text("a file where a folder should be")
    server = DevZooKeeper(tmp_path / "zookeeper")
    with pytest.raises(LocalClusterError, match=r"(?s)ended with code .*Unable to create data"):
        server.start()


def test_a_server_that_is_not_ready_in_time_is_stopped(server):
    with pytest.raises(LocalClusterError, match="before the deadline"):
        server.start(deadline_secs=0)
    assert not server.running


def test_it_dies_with_its_parent(tmp_path):
    script = textwrap.dedent(f"""
        import time
        from stormkeeper.local.dev_zookeeper import DevZooKeeper
        server = DevZooKeeper({str(tmp_path / "zookeeper")!r})
        server.start()
        print(server.pid, flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        try:
            child = psutil.Process(int(parent.stdout.readline()))
        finally:
            parent.kill()
    all_gone([child])


def test_a_folder_has_one_server_at_a_time(server, monkeypatch):
    monkeypatch.setattr(dev_zookeeper, "LEAVING_SECS", 0.1)
    other = DevZooKeeper(server.data_dir)
    server.start()
    settings = (server.data_dir / "zoo.cfg").read_text()
    with pytest.raises(LocalClusterError, match="another ZooKeeper keeps its data in"):
        other.start()
    assert (server.data_dir / "zoo.cfg").read_text() == settings
    # Whoever is stopped, or killed, leaves it to the next.
    server.stop()
    with other:
        psutil.Process(other.pid).kill()
        until(lambda: not other.running)
        server.start()
        assert server.running


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LocalClusterError, match=r"cannot keep its data in .*storm\.local\.dir"):
        DevZooKeeper(tmp_path / "file" / "zookeeper").start()


def storm(tmp_path, *options):
    """Starts ``storm dev-zookeeper`` with its data below `tmp_path`."""
    settings = [f"storm.local.dir={tmp_path}", *options]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "stormkeeper", "dev-zookeeper"),
            *(part for setting in settings for part in ("-c", setting)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": "/nonexistent"},
    )


def java_of(daemon):
    return psutil.Process(daemon.pid).children()[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_daemon_serves_when_it_says_so_and_stops_cleanly(tmp_path, number):
    with storm(tmp_path, "storm.zookeeper.port=0") as daemon:
        ready = daemon.stdout.readline()
        assert ready.startswith("zookeeper listening on 127.0.0.1:")
        assert "Mode:" in four_letter_word("127.0.0.1", int(ready.rpartition(":")[2]), "srvr")
        java = java_of(daemon)
        daemon.send_signal(number)
        assert daemon.wait(60) == 0
        assert not java.is_running()
        assert daemon.stdout.read() == ""
    assert (tmp_path / "zookeeper" / "data").is_dir()


def test_the_daemon_stops_while_it_starts(tmp_path):
    with storm(tmp_path, "storm.zookeeper.port=0") as daemon:
        java = until(lambda: next(iter(psutil.Process(daemon.pid).children()), None))
        daemon.terminate()
        assert daemon.wait(60) == 0
        assert not java.is_running()


def test_the_daemon_says_that_its_port_is_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with storm(tmp_path, f"storm.zookeeper.port={port}") as daemon:
            assert daemon.wait(60) == 1
            error = daemon.stderr.read()
            assert daemon.stdout.read() == ""
    assert f"cannot listen on 127.0.0.1:{port}" in error
    assert "Traceback" not in error


def test_the_daemon_ends_with_the_log_of_a_server_that_ends(tmp_path):
    with storm(tmp_path, "storm.zookeeper.port=0") as daemon:
        daemon.stdout.readline()
        with (tmp_path / "zookeeper" / "zookeeper.log").open("a") as log:
            log.write("the last words\n")
        java_of(daemon).kill()
        assert daemon.wait(60) == 1
        error = daemon.stderr.read()
    assert "ended with code -9 while it served" in error
    assert "the last words" in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_second_server_on_a_folder_is_refused_until_first_ends(tmp_path):
    with storm(tmp_path, "storm.zookeeper.port=0") as first:
        assert first.stdout.readline().startswith("zookeeper listening on")
        with storm(tmp_path, "storm.zookeeper.port=0") as second:
            assert second.stdout.readline() == ""
            assert second.wait(60) == 1
            (told,) = second.stderr.read().splitlines()
        assert told.startswith("storm: another ZooKeeper keeps its data in")
        first.kill()
    with storm(tmp_path, "storm.zookeeper.port=0") as third:
        assert third.stdout.readline().startswith("zookeeper listening on")
        third.terminate()
        assert third.wait(60) == 0
