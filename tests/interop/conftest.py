"""Ours against Storm's own Java, where somebody has it (``make interop PEER=DIR``)."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.storm_peer import VARIABLE, StormPeer, why_not

_SAID = pytest.StashKey[list[str]]()

PASSWORD = "open-sesame"


@pytest.fixture(scope="session")
def storm_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StormPeer]:
    """Storm's own classes, with our drivers; the test is skipped where nobody has them."""
    lacking = why_not()
    if lacking is not None:
        # Who asked for it by name wants to know, and not to be told that all is well.
        if os.environ.get(VARIABLE):
            pytest.fail(lacking)
        pytest.skip(lacking)
    return StormPeer(Path(os.environ[VARIABLE]), tmp_path_factory.mktemp("storm-peer"))


@pytest.fixture
def say(storm_peer: StormPeer, pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Has a line printed at the end of the run."""
    said = pytestconfig.stash.setdefault(_SAID, [])
    return lambda line: said.append(f"Storm {storm_peer.release}: {line}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    said = terminalreporter.config.stash.get(_SAID, [])
    if said:
        terminalreporter.section("Storm's own Java")
        for line in said:
            terminalreporter.write_line(line)


@pytest.fixture
def security(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    """What both sides have in their configuration to authenticate; the method is the parameter."""
    method = request.param
    conf: dict[str, object] = {"pacemaker.auth.method": method, "nimbus.daemon.user": "nimbus"}
    if method == "DIGEST":
        jaas = tmp_path / "jaas.conf"
        jaas.write_text(
            "PacemakerDigest {\n"
            "    org.apache.storm.security.auth.digest.DigestLoginModule required\n"
            f'    username="nimbus" password="{PASSWORD}";\n'
            "};\n"
        )
        conf["java.security.auth.login.config"] = str(jaas)
    elif method == "KERBEROS":
        realm = request.getfixturevalue("kerberos_realm")
        conf["java.security.auth.login.config"] = str(realm.jaas(tmp_path))
    return conf
