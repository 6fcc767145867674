"""What a Pacemaker takes at its start, and what its log then says."""

import re

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.state import factory
from stormkeeper.state.storm.codec import Codec
from support.pacemaker import PacemakerProcess
from support.waiting import until


def test_it_starts_with_what_only_storms_daemons_can_use(start_pacemaker, tmp_path):
    file = tmp_path / "storm.yaml"
    file.write_text(
        "storm.cluster.state.store: com.my.Store\n"
        "storm.meta.serialization.delegate:"
        " org.apache.storm.serialization.DefaultSerializationDelegate\n"
        "nimbus.seeds: []\n"
        'java.security.auth.login.config: ""\n'
        "supervisor.slots.ports:\n"
    )
    assert start_pacemaker(options=["--config", str(file)]).stop() == 0


class Limited(PacemakerProcess):
    """A daemon that may have 100 open files."""

    program = (
        "-c",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "from stormkeeper.cli import main; main()",
    )


def shortages(server):
    return re.findall(r" WARNING \S+ (at most .*)", server.log)


@pytest.mark.parametrize("wanted", [0, 5_000])
def test_too_few_open_files_are_a_warning_that_says_what_to_raise(wanted):
    beside = ", and not the 5000 of pacemaker.max.connections" if wanted else ""
    with Limited(conf={"pacemaker.max.connections": wanted}) as server:
        assert server.stop() == 0
        assert shortages(server) == [
            f"at most 36 connections at a time{beside}: this process may have 100 open files, of"
            " which 64 are kept; raise LimitNOFILE= in the unit, or the hard limit of open files"
            " (ulimit -Hn)"
        ]


def test_open_files_that_suffice_are_no_warning(tmp_path):
    file = tmp_path / "storm.yaml"
    file.write_text("pacemaker.max.connections: 30\n")
    with Limited(options=["--config", str(file)]) as server:
        server.reload()
        assert shortages(server) == []
        file.write_text("pacemaker.max.connections: 40\n")
        server.reload()
        [line] = until(lambda: shortages(server))
        assert "and not the 40 of pacemaker.max.connections" in line


def test_a_store_that_is_none_of_ours_is_refused_by_who_connects_to_it():
    conf = defaults().with_values({"storm.cluster.state.store": "com.my.Store"})
    for connect in (factory.connect, factory.connect_heartbeats):
        with pytest.raises(ConfigError, match=r"com\.my\.Store.*ZKStateStorageFactory, .*PaceM"):
            connect(conf)


def test_a_delegate_that_is_none_of_ours_is_refused_by_who_writes():
    name = "org.apache.storm.serialization.DefaultSerializationDelegate"
    conf = defaults().with_values({"storm.meta.serialization.delegate": name})
    with pytest.raises(ConfigError, match=rf"{name}.*must be one of .*GzipThriftSerialization"):
        Codec.from_conf(conf)
