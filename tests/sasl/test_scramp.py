"""What of scramp is relied on without being documented, and what it must therefore look like.

If one of these fails, scramp has changed: read its new source before the cap is moved.
"""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from scramp import ScramClient, ScramException, ScramMechanism
from scramp.utils import ServerError, saslprep

MECHANISM = "SCRAM-SHA-256"
SALT = b"sixteen bytes it"


@pytest.fixture
def server():
    mechanism = ScramMechanism(MECHANISM)
    verifier = mechanism.make_auth_info("right", iteration_count=4096, salt=SALT)
    return mechanism.make_server(lambda _: verifier)


def answered(client, server):
    server.set_client_first(client.get_client_first())
    client.set_server_first(server.get_server_first())


def test_a_client_tells_the_rounds_before_it_does_them(server, monkeypatch):
    client = ScramClient([MECHANISM], "user", "right")

    def work(*_):
        raise AssertionError("the rounds were done, and cannot be refused any more")

    client_first = client.get_client_first()
    server.set_client_first(client_first)
    server_first = server.get_server_first()
    monkeypatch.setattr("hashlib.pbkdf2_hmac", work)
    client.set_server_first(server_first)
    assert int(client.iterations) == 4096
    with pytest.raises(AssertionError, match="rounds were done"):
        client.get_client_final()


def test_a_wrong_proof_is_told_by_its_name(server):
    client = ScramClient([MECHANISM], "user", "wrong")
    answered(client, server)
    with pytest.raises(ScramException) as refused:
        server.set_client_final(client.get_client_final())
    assert refused.value.server_error is ServerError.INVALID_PROOF


def test_names_are_prepared_and_control_characters_refused():
    assert saslprep("I\u00adX") == "IX"
    with pytest.raises(ScramException):
        saslprep("a\x07")


def test_a_verifier_is_salt_keys_and_rounds():
    made = ScramMechanism(MECHANISM).make_auth_info("right", iteration_count=4096, salt=SALT)
    salt, stored_key, server_key, rounds = made
    assert (salt, rounds) == (SALT, 4096)
    assert (len(stored_key), len(server_key)) == (32, 32)


def test_whatever_the_version_it_is_one_that_is_known():
    """The cap, and this test, are moved together with a look at the new source."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert "scramp>=1.5,<1.6" in tomllib.loads(project.read_text())["project"]["dependencies"]
    assert metadata.version("scramp").startswith("1.5.")
