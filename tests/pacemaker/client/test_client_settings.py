"""What a configuration makes of a client."""

import pickle

import pytest

from stormkeeper import conf as configuration
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.client.client_settings import KEYS, ClientSettings, access_of, of_texts
from stormkeeper.pacemaker.client.pool import connect

JAAS = """
PacemakerDigest {
    username="reader"
    password="a secret that nobody sees";
};
"""


@pytest.fixture
def jaas(tmp_path):
    path = tmp_path / "jaas.conf"
    path.write_text(JAAS)
    return path


def conf(**values):
    return configuration.defaults().with_values(
        {key.replace("__", "."): value for key, value in values.items()}
    )


def secured(jaas, method="DIGEST", **more):
    return conf(
        pacemaker__auth__method=method,
        java__security__auth__login__config=None if jaas is None else str(jaas),
        **more,
    )


def test_nobody_authenticates_where_nothing_is_said():
    settings = ClientSettings.of(conf())
    assert settings.identify is None
    assert settings.tls is None
    assert settings == ClientSettings()


@pytest.mark.parametrize("method", ["DIGEST", "SCRAM"])
def test_a_reader_authenticates_by_the_method_and_the_file(jaas, method):
    identity = ClientSettings.of(secured(jaas, method)).identify("localhost")
    assert identity.method == method
    assert str(jaas) in identity.remedy
    assert "PacemakerDigest" in identity.remedy
    assert "java.security.auth.login.config" in identity.remedy
    assert "secret" not in repr(identity)
    assert identity.mechanism() is not identity.mechanism()


def test_a_writer_authenticates_only_where_writers_have_to(jaas):
    assert ClientSettings.of(secured(jaas), "writer").identify is None
    demanded = secured(jaas, pacemaker__auth__writes=True)
    assert ClientSettings.of(demanded, "writer").identify is not None


def test_a_writer_needs_no_file():
    ClientSettings.of(secured(None), "writer")


def test_missing_file_is_reported_before_connecting(tmp_path):
    for path, words in ((None, "needs a JAAS file"), (tmp_path / "absent", "absent")):
        with pytest.raises(ConfigError, match=words):
            connect(secured(path, pacemaker__servers=["a"]))


def test_what_a_message_may_have_is_as_configured():
    assert ClientSettings.of(conf(pacemaker__thrift__message__size__max=7)).max_message_size == 7


def test_another_process_gets_the_names_of_files_and_no_secret(jaas):
    given = secured(
        jaas, pacemaker__auth__writes=True, pacemaker__tls__check__hostname=False, ui__port=1
    )
    access = access_of(given)
    assert access == {
        "pacemaker.auth.method": "DIGEST",
        "java.security.auth.login.config": str(jaas),
        "pacemaker.tls.check.hostname": "false",
    }
    there = of_texts(pickle.loads(pickle.dumps(access)))
    assert there.identify("localhost").method == "DIGEST"


def test_the_file_of_storms_jvm_options_is_handed_on_too(jaas):
    given = secured(None, pacemaker__childopts=f"-Djava.security.auth.login.config={jaas}")
    assert access_of(given)["java.security.auth.login.config"] == str(jaas)
    assert f"of {jaas} (pacemaker.childopts)" in ClientSettings.of(given).identify("a").remedy


def test_the_file_that_is_handed_on_is_the_one_that_counts(jaas, tmp_path):
    key = "java.security.auth.login.config"
    storm_yaml = tmp_path / "storm.yaml"
    storm_yaml.write_text(f"{key}: /absent\npacemaker.childopts: -D{key}={jaas}\n")
    for overrides in [], [f"{key}={jaas}", f"pacemaker.childopts=-D{key}=/absent"]:
        given = configuration.load(
            files=[storm_yaml], overrides=["pacemaker.auth.method=DIGEST", *overrides]
        )
        access = access_of(given)
        assert access[key] == str(jaas)
        assert str(jaas) in of_texts(access).identify("localhost").remedy


def test_a_value_that_its_key_may_not_have_is_told():
    with pytest.raises(ConfigError, match=r"pacemaker\.auth\.method"):
        of_texts({"pacemaker.auth.method": "MAGIC"})


def test_every_key_is_one_of_the_configuration():
    assert set(KEYS) <= set(configuration.defaults())
