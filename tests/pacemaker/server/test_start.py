"""What a Pacemaker takes at its start, and what its log then says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stormkeeper
from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.server.daemon import without_effect
from stormkeeper.state import backends
from stormkeeper.thrift.serialization import Codec
from support.pacemaker import PacemakerProcess
from support.waiting import until


def test_starts_with_keys_of_storms_daemons(start_pacemaker, tmp_path):
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
def test_too_few_open_files_warn_with_advice(wanted):
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


def test_log_has_version_files_and_end(start_pacemaker, tmp_path):
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.touch()
    options = [part for file in files for part in ("--config", str(file))]
    for given, told in ((options, f"{files[0]}, {files[1]}"), ([], "no file")):
        server = start_pacemaker(options=given)
        assert server.stop() == 0
        version = re.escape(stormkeeper.__version__)
        line = rf" INFO \S+ version {version}; configuration read from {told}\n"
        assert re.search(line, server.log)
        assert re.search(r" stopping: 0 connections, 0 pulses held; asked by SIGTERM\n", server.log)


def cannot_listen(key, value, *launcher):
    conf = {"pacemaker.bind.host": "127.0.0.1", "pacemaker.port": 0, key: value}
    options = [part for pair in conf.items() for part in ("-c", "{}={}".format(*pair))]
    command = [*launcher, sys.executable, "-m", "stormkeeper", "pacemaker", *options]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout) == (1, "")
    [line] = told.stderr.splitlines()
    assert "cannot listen on " in line
    return line


@pytest.mark.parametrize("value", ["nosuch.invalid", "192.0.2.1"])
def test_foreign_bind_address_is_an_error_with_advice(value):
    line = cannot_listen("pacemaker.bind.host", value)
    assert line.endswith(
        ": set pacemaker.bind.host to an address of this machine (`ip address` lists them), or to"
        " 0.0.0.0 for all of them"
    )


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv, to do without privileges")
@pytest.mark.parametrize("key", ["pacemaker.port", "pacemaker.metrics.port"])
def test_privileged_port_error_names_the_remedy(key):
    first = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if int(first.read_text()) <= 1:
        pytest.skip("every port is for everybody here")
    dropped = ["setpriv", "--bounding-set=-net_bind_service"] if os.geteuid() == 0 else []
    line = cannot_listen(key, 1, *dropped)
    assert f"Permission denied: set {key} to 1024 or more, or have systemd open it" in line


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        (
            {"pacemaker.kerberos.users": ["ui"]},
            [
                "pacemaker.kerberos.users has no effect: it counts where pacemaker.auth.method is"
                " KERBEROS, and that is NONE"
            ],
        ),
        (
            {"pacemaker.tls.key.file": "/k", "pacemaker.tls.certificate.file": "/c"},
            [
                "pacemaker.tls.certificate.file, pacemaker.tls.key.file have no effect, and the"
                " port speaks no TLS: set pacemaker.tls.enable to true to switch it on"
            ],
        ),
        (
            {"pacemaker.tls.client.auth": "required"},
            [
                "pacemaker.tls.client.auth has no effect, and the port speaks no TLS: set"
                " pacemaker.tls.enable to true to switch it on"
            ],
        ),
        (
            {"pacemaker.childopts": "-Djava.security.auth.login.config=/none.conf"},
            [
                "the JAAS file /none.conf cannot be read: No such file or directory; it is named by"
                " pacemaker.childopts; with pacemaker.auth.method NONE a Pacemaker does without it"
            ],
        ),
        ({"pacemaker.kerberos.users": ["ui"], "pacemaker.auth.method": "KERBEROS"}, []),
        ({"pacemaker.tls.key.file": "/k", "pacemaker.tls.enable": True}, []),
        ({}, []),
    ],
)
def test_setting_without_effect_is_reported(conf, says):
    assert without_effect(defaults().with_values(conf)) == says


def test_settings_without_effect_are_warnings_at_the_start(start_pacemaker):
    server = start_pacemaker(conf={"pacemaker.tls.ca.file": "/ca.pem"})
    assert re.search(r" WARNING \S+ pacemaker\.tls\.ca\.file has no effect, ", server.log)


def test_foreign_store_is_refused_by_connecting_commands():
    conf = defaults().with_values({"storm.cluster.state.store": "com.my.Store"})
    for connect in (backends.connect, backends.heartbeat_sender):
        with pytest.raises(ConfigError, match=r"com\.my\.Store.*ZKStateStorageFactory, .*PaceM"):
            connect(conf)


def test_foreign_delegate_is_refused_by_writing_commands():
    name = "org.apache.storm.serialization.DefaultSerializationDelegate"
    conf = defaults().with_values({"storm.meta.serialization.delegate": name})
    with pytest.raises(ConfigError, match=rf"{name}.*must be one of .*GzipThriftSerialization"):
        Codec.from_conf(conf)
