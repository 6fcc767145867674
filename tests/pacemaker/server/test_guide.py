"""What docs/security.md shows of TLS works as it stands there, and what it says of limits is so."""

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from stormkeeper.conf import yaml_text
from stormkeeper.conf.schema import SCHEMA
from stormkeeper.pacemaker.server import reload
from support.pacemaker import PacemakerProcess
from support.plain_client import Client

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


def test_every_key_that_is_named_exists():
    named = set(re.findall(r"`((?:pacemaker|nimbus)\.[a-z.]+)(?::[^`]*)?`", GUIDE))
    assert len(named) > 20
    for name in named:
        assert name in SCHEMA, name


def test_what_waits_for_a_restart_is_what_is_said():
    said = set(re.findall(r"`(pacemaker\.[a-z.]+)`", section("While it runs")))
    ports_and_addresses = {k for k in reload.AT_START if k.endswith((".host", ".port"))}
    assert said == reload.AT_START - ports_and_addresses
