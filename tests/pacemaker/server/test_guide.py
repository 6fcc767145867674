"""What docs/security.md shows of TLS works as it stands there, and what it says of limits is so."""

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from stormkeeper.conf import access_control, defaults, yaml_text
from stormkeeper.conf.schema import SCHEMA
from stormkeeper.pacemaker.server import pacemaker_server
from stormkeeper.sasl import methods
from support.pacemaker import PacemakerProcess
from support.plain_client import Client
from support.waiting import until

GUIDE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)[1]


def block(title, language):
    return re.search(rf"```{language}\n(.*?)```", section(title), re.DOTALL)[1]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_certificates_made_as_shown_serve(tmp_path):
    commands = block("TLS", "sh").replace("my.pacemaker.host", "localhost")
    subprocess.run(
        ["sh", "-ec", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60
    )
    conf = yaml_text.read(block("TLS", "yaml").replace("/etc/stormkeeper", str(tmp_path)).encode())
    context = ssl.create_default_context(cafile=conf["pacemaker.tls.ca.file"])
    with PacemakerProcess(conf=conf) as server:
        server.host = "localhost"
        with Client(server, context) as client:
            client.send("/a")
            assert client.get("/a") == b"pulse"


def test_keytabs_made_as_shown_let_a_client_read(kerberos_realm, tmp_path, monkeypatch):
    def as_here(text):
        for shown, here in (
            ("my.pacemaker.host", "127.0.0.1"),
            ("my.nimbus.host", "nimbus.example"),
            ("/etc/keytabs", str(tmp_path)),
        ):
            text = text.replace(shown, here)
        return text

    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    made, tried = re.findall(r"```sh\n(.*?)```", section("Principals and keytabs"), re.DOTALL)[:2]
    for commands in made, tried:
        subprocess.run(
            ["sh", "-ec", as_here(commands)],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=60,
        )
    [login] = re.findall(r"```\n(PacemakerServer .*?)```", section("The JAAS file"), re.DOTALL)
    (tmp_path / "jaas.conf").write_text(as_here(login))
    conf = {
        "pacemaker.auth.method": "KERBEROS",
        "java.security.auth.login.config": str(tmp_path / "jaas.conf"),
        "nimbus.daemon.user": "nimbus",
    }
    with PacemakerProcess(conf=conf) as server, Client(server) as client:
        mechanism = methods.client_mechanism(defaults().with_values(conf), server.host)
        assert client.authenticate(mechanism())
        who = f"'nimbus/nimbus.example@{kerberos_realm.name}'"
        until(lambda: f"authenticated as {who} with KERBEROS" in server.log)


def test_every_key_that_is_named_exists():
    named = set(re.findall(r"`((?:pacemaker|nimbus)\.[a-z.]+)(?::[^`]*)?`", GUIDE))
    assert len(named) > 20
    for name in named:
        assert name in SCHEMA or access_control.asks({name: "a value"}), name


def test_page_lists_the_keys_read_at_start():
    said = set(re.findall(r"`(pacemaker\.[a-z.]+)`", section("While it runs")))
    ports_and_addresses = {k for k in pacemaker_server.AT_START if k.endswith((".host", ".port"))}
    assert said == pacemaker_server.AT_START - ports_and_addresses
