"""The policy that a configuration asks for."""

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.server.client_session import Policy

JAAS = 'PacemakerDigest {{ username="nimbus" password="{}"; }};\n'


def policy(**conf):
    return Policy.from_conf(
        defaults().with_values({key.replace("_", "."): value for key, value in conf.items()})
    )


@pytest.fixture
def jaas(tmp_path):
    path = tmp_path / "jaas.conf"
    path.write_text(JAAS.format("open sesame"))
    return path


def digest(path, **conf):
    return policy(pacemaker_auth_method="DIGEST", java_security_auth_login_config=str(path), **conf)


def test_with_none_everybody_may_do_everything():
    assert (policy().everyone_may_read, policy().everyone_may_write) == (True, True)


@pytest.mark.parametrize("writes", [True, False])
def test_method_is_needed_to_read_and_optionally_to_write(jaas, writes):
    made = digest(jaas, pacemaker_auth_writes=writes)
    assert (made.everyone_may_read, made.everyone_may_write) == (False, not writes)
    assert made.method == "DIGEST"
    assert made.mechanism().start().startswith(b"realm=")
    assert made.is_authorised("anybody with the password")
    assert not made.is_authorised("")


def test_writers_cannot_authenticate_without_a_method():
    with pytest.raises(ConfigError, match=r"pacemaker\.auth\.writes"):
        policy(pacemaker_auth_writes=True)


def test_method_without_its_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.conf"):
        digest(tmp_path / "missing.conf")
    with pytest.raises(ConfigError, match=r"java\.security\.auth\.login\.config"):
        policy(pacemaker_auth_method="DIGEST")


def test_the_fingerprint_tells_passwords_apart_and_nothing_else(jaas):
    before = digest(jaas)
    assert digest(jaas, pacemaker_handshake_timeout_secs=3).fingerprint == before.fingerprint
    jaas.write_text(JAAS.format("another"))
    assert digest(jaas).fingerprint != before.fingerprint
    assert "another" not in repr(digest(jaas))
    assert repr(before.fingerprint) not in repr(before)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o604])
def test_passwords_that_others_can_read_are_warned_of(jaas, caplog, mode):
    jaas.chmod(mode)
    digest(jaas)
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == bool(mode & 0o077)
    assert all(f"{jaas}, which holds passwords, can be read by others" in line for line in warned)
    caplog.clear()
    policy(pacemaker_auth_method="NONE", java_security_auth_login_config=str(jaas))
    assert not caplog.records
