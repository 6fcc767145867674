"""The pool over real daemons: its configuration, its cost, its end."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper import conf
from stormkeeper.errors import ConfigError, LocalProtocolError, PacemakerClosedError
from stormkeeper.pacemaker.client.pool import PacemakerPool, connect
from support.leaks import nothing_left_behind
from support.pacemaker import nobody
from support.pools import TRY, address
from support.waiting import DEADLINE_SECS


def test_no_server_is_a_mistake_in_the_configuration():
    with pytest.raises(ConfigError, match=r"set pacemaker\.servers to"):
        PacemakerPool([])


def test_the_configuration_makes_a_pool(daemons):
    servers = [daemon.address for daemon in daemons]
    settings = conf.defaults().with_values(
        {"pacemaker.servers": servers, "pacemaker.thrift.message.size.max": 2000}
    )
    with connect(settings, name="mine") as pool:
        assert [str(server) for server in pool.clients] == servers
        pool.send_pulse("/w", b"1")
        assert pool.children("/") == ["w"]
        threads = [thread.name for thread in threading.enumerate()]
        assert [name for name in threads if name.startswith("mine")] == ["mine"], "one for all"
        with pytest.raises(LocalProtocolError, match="2000"):
            pool.send_pulse("/w", bytes(2000))
    with pytest.raises(ConfigError, match=r"pacemaker\.servers"):
        connect(conf.defaults().with_values({"pacemaker.servers": []}))


def test_listing_loads_no_heavy_library(daemons):
    program = """
import json, sys
from stormkeeper.conf import Address
from stormkeeper.pacemaker.client.pool import PacemakerPool
servers = [Address.parse(server, 6699) for server in sys.argv[1:]]
with PacemakerPool(servers) as pool:
    pool.send_pulse("/w/a", b"1")
    names = pool.children("/w")
print(json.dumps([names, sorted({"thriftpy2", "pyspark", "zstandard"} & set(sys.modules))]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program, *(daemon.address for daemon in daemons)],
        capture_output=True,
        timeout=DEADLINE_SECS,
        check=True,
    )
    assert json.loads(run.stdout) == [["a"], []]


def test_a_closed_pool_says_so_and_wakes_who_waits(own_daemons, pool_of):
    pool = pool_of(*own_daemons)
    pool.send_pulse("/w", b"1")
    for daemon in own_daemons:
        daemon.suspend()
    with ThreadPoolExecutor(2) as threads:
        waiting = [
            threads.submit(pool.children, "/w"),
            threads.submit(pool.send_pulse, "/w", b"2"),
        ]
        time.sleep(0.1)
        pool.close()
        for call in waiting:
            with pytest.raises(PacemakerClosedError, match="closed"):
                call.result(DEADLINE_SECS)
    pool.close()
    for verb in (pool.children, pool.delete_path, pool.read):
        with pytest.raises(PacemakerClosedError, match="closed"):
            verb("/w")
    with pytest.raises(PacemakerClosedError, match="closed"):
        pool.send_pulse("/w", b"3")


def test_threads_and_descriptors_are_gone_at_the_end(daemons):
    with nothing_left_behind():
        for path in ("w", "x", "y"):
            servers = [address(daemon) for daemon in daemons]
            with PacemakerPool([*servers, nobody()], try_timeout=TRY) as pool:
                pool.send_pulse(f"/{path}", b"1")
                assert pool.children("/") == [path]
                pool.delete_path(f"/{path}")
