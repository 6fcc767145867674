import base64

import pytest

from stormkeeper.errors import ConfigError
from stormkeeper.sasl import credentials, jaas
from stormkeeper.sasl.credentials import UserPassword
from support import vectors


def login(options):
    return jaas.parse(f"S {{ {options}; }};", "F")["S"]


def test_the_secret_is_storms():
    (vector,) = (v for v in vectors.load("pacemaker") if v["name"] == "digest.secret")
    user = UserPassword(vector["username"], vector["password"])
    assert credentials.storm_password(user) == vector["sasl_password"]
    secret = base64.b64decode(credentials.storm_password(user))
    assert secret.decode() == vector["secret"]
    assert secret.hex() == vector["hex"]


def test_the_user_name_is_storms():
    challenges = [v for v in vectors.load("pacemaker") if "sasl_username" in v]
    assert challenges
    for vector in challenges:
        assert credentials.storm_username(vector["client_name"]) == vector["sasl_username"]
        assert credentials.client_name(vector["sasl_username"]) == vector["client_name"]


def test_foreign_user_name_is_shown_unchanged():
    assert credentials.client_name("not base64!") == "not base64!"
    assert credentials.client_name("gA==") == "gA=="


def test_a_user_without_a_password():
    with pytest.raises(ConfigError, match='F:1: section S has no password="…"; add it'):
        credentials.user_password(login("username=a"))


def test_several_users():
    users = credentials.user_passwords(login('username=a password=x user_b="y" user_a="x"'))
    assert users == {"a": UserPassword("a", "x"), "b": UserPassword("b", "y")}
    assert list(credentials.user_passwords(login("user_b=y"))) == ["b"]
    with pytest.raises(ConfigError, match="has no username"):
        credentials.user_passwords(login("x=y"))
    with pytest.raises(ConfigError, match="has no user_b"):
        credentials.user_passwords(login('user_b=""'))


@pytest.mark.parametrize("of", [credentials.user_password, credentials.user_passwords])
def test_a_user_with_two_passwords(of):
    told = "F:1: section S has two passwords for the user 'a', as password and as user_a; keep one"
    with pytest.raises(ConfigError) as caught:
        of(login('username=a password="HUSH" user_b="HUSH" user_a="QUIET"'))
    assert str(caught.value) == told
    of(login('username=a password="HUSH" user_b="QUIET" user_a="HUSH"'))


def test_no_repr_shows_a_password():
    assert "HUSH" not in repr(UserPassword("a", "HUSH"))


def test_a_name_in_a_log_line_is_printable_and_short():
    assert credentials.printable("nimbus@EXAMPLE") == "nimbus@EXAMPLE"
    assert credentials.printable("a\nb\x1b[31mc\u202e") == "a�b�[31mc�"
    assert credentials.printable("x" * 200) == "x" * 100 + "…"
