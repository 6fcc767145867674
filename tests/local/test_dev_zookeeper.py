import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from stormkeeper.errors import LocalClusterError
from stormkeeper.local import dev_zookeeper
from stormkeeper.local.dev_zookeeper import DevZooKeeper, four_letter_word, zookeeper_classpath
from support.waiting import until

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def server(tmp_path):
    server = DevZooKeeper(tmp_path / "zookeeper")
    yield server
    server.stop()


def test_serves_once_started_and_is_gone_once_stopped(server):
    server.start()
    assert server.address == f"127.0.0.1:{server.port}"
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


def test_a_folder_with_any_name(tmp_path):
    with DevZooKeeper(tmp_path / "zoo kéeper \\ x") as server:
        assert server.running


def test_a_suspended_server_can_be_stopped(server):
    server.start()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(grace_secs=20)
    assert server.returncode == 128 + signal.SIGTERM


def test_a_port_in_use_is_a_clear_error_and_leaves_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = DevZooKeeper(tmp_path / "zookeeper", port=port)
        with pytest.raises(LocalClusterError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            server.start()
    assert not server.running


def test_a_port_taken_while_the_server_starts(tmp_path, monkeypatch):
    # As if another process had bound the port between our look at it and the server's.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(dev_zookeeper, "_free_port", lambda _host, port: port)
        server = DevZooKeeper(tmp_path / "fixed", port=port)
        with pytest.raises(LocalClusterError, match="another process took the port"):
            server.start()
        assert not server.running

        found = iter([port, 0])
        real = dev_zookeeper.socket.socket

        def next_port(host, _port):
            chosen = next(found)
            if chosen:
                return chosen
            with real() as probe:
                probe.bind((host, 0))
                return probe.getsockname()[1]

        monkeypatch.setattr(dev_zookeeper, "_free_port", next_port)
        with DevZooKeeper(tmp_path / "any") as server:
            assert server.port != port


def test_a_server_that_ends_while_it_starts_is_reported_with_its_log(tmp_path):
    (tmp_path / "zookeeper").mkdir()
    (tmp_path / "zookeeper" / "data").write_text("a file where a folder should be")
    server = DevZooKeeper(tmp_path / "zookeeper")
    with pytest.raises(LocalClusterError, match=r"(?s)ended with code .*Unable to create data"):
        server.start()


def test_a_server_that_is_not_ready_in_time_is_stopped(server):
    with pytest.raises(LocalClusterError, match="before the deadline"):
        server.start(deadline_secs=0)
    assert not server.running


def test_the_thread_that_started_it_may_end(server):
    # Linux counts a thread as the parent of the process it starts.
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert "Mode:" in four_letter_word(server.host, server.port, "srvr")
    assert server.running


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
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_class_path_has_only_what_the_server_needs():
    jars = [Path(jar).name for jar in zookeeper_classpath().split(os.pathsep)]
    assert any(jar.startswith("zookeeper-3") for jar in jars)
    assert len(jars) < 25


def test_class_path_falls_back_to_every_jar(monkeypatch):
    monkeypatch.setattr(dev_zookeeper, "JARS", ("zookeeper", "no-such-library"))
    assert zookeeper_classpath().endswith(f"jars{os.sep}*")
