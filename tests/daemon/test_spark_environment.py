import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from stormkeeper.daemon import spark_environment
from stormkeeper.daemon.spark_environment import complete, find_java, java_properties, java_version
from stormkeeper.errors import EngineError


def fake_java(home: Path, version: str, *, with_release: bool = True) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    if with_release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return executable


@pytest.mark.parametrize("with_release", [True, False])
@pytest.mark.parametrize(
    ("version", "feature"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8), ("21-ea", 21)]
)
def test_version_is_the_feature_number(tmp_path, version, feature, with_release):
    executable = fake_java(tmp_path / "jdk", version, with_release=with_release)
    assert java_version(executable) == feature


def test_version_of_what_is_no_java(tmp_path):
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("no program")
    broken.chmod(0o755)
    assert java_version(broken) is None
    assert java_version(tmp_path / "absent") is None


def test_java_home_comes_before_the_path(tmp_path):
    at_home = fake_java(tmp_path / "home", "21.0.1")
    on_path = fake_java(tmp_path / "other", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environ) == at_home
    assert find_java({"PATH": str(on_path.parent)}) == on_path


@pytest.mark.parametrize(("version", "what"), [("11.0.1", "version 11"), (None, "has no bin/java")])
def test_a_java_home_that_cannot_run_spark_is_refused(tmp_path, version, what):
    home, on_path = tmp_path / "home", fake_java(tmp_path / "other", "17.0.1")
    if version is not None:
        fake_java(home, version)
    with pytest.raises(EngineError, match=what) as refused:
        find_java({"JAVA_HOME": str(home), "PATH": str(on_path.parent)})
    assert str(home) in str(refused.value)
    assert "unset JAVA_HOME" in str(refused.value)


def test_no_java_is_one_sentence_that_says_what_to_do(tmp_path):
    with pytest.raises(EngineError, match=r"^Java 17 or newer is needed .*install") as caught:
        find_java({"PATH": str(tmp_path)})
    assert "\n" not in str(caught.value)


def test_too_old_a_java_is_named(tmp_path):
    old = fake_java(tmp_path / "home", "1.8.0_392")
    with pytest.raises(EngineError, match="version 8") as caught:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""})
    assert str(old) in str(caught.value)


def test_the_java_of_this_machine_is_found():
    assert os.access(find_java(), os.X_OK)


@pytest.fixture
def nameless(monkeypatch):
    """This process's user has no entry in the system's list of users."""
    monkeypatch.setattr(spark_environment, "_account", lambda: None)


def test_variables_of_another_spark_are_removed_and_named():
    environ = {"SPARK_HOME": "/opt/spark", "SPARK_REMOTE": "sc://x", "SPARK_LOCAL_DIRS": "/data"}
    removed = spark_environment.clean(environ)
    assert environ == {"SPARK_LOCAL_DIRS": "/data"}
    assert removed == ["SPARK_HOME", "SPARK_REMOTE"]
    text = spark_environment.removal_text(removed)
    assert text.startswith("SPARK_HOME, SPARK_REMOTE of the environment have no effect")


@pytest.mark.usefixtures("nameless")
def test_a_nameless_user_without_home_gets_both(tmp_path):
    environ = {"LANG": "C.UTF-8"}
    complete(environ, home=tmp_path / "home of workers")
    home = str(tmp_path / "home of workers")
    assert Path(home).stat().st_mode & 0o777 == 0o700
    assert environ == {
        "LANG": "C.UTF-8",
        "HOME": home,
        "USER": "stormkeeper",
        "LOGNAME": "stormkeeper",
        "SPARK_SUBMIT_OPTS": f"-Duser.name=stormkeeper '-Duser.home={home}'",
    }
    assert spark_environment.login_name(environ) == "stormkeeper"
    again = dict(environ)
    complete(again, home=tmp_path / "another")
    assert again == environ


@pytest.mark.usefixtures("nameless")
def test_what_the_environment_names_stays(tmp_path):
    given = {
        "HOME": str(tmp_path),
        "USER": "etl",
        "LOGNAME": "etl",
        "LC_ALL": "de_DE.UTF-8",
        "SPARK_SUBMIT_OPTS": "-Duser.home=/x -Duser.name=y -Da=b",
    }
    environ = dict(given)
    complete(environ)
    assert environ == given
    assert spark_environment.login_name({**environ, "HADOOP_USER_NAME": "hdfs"}) == "hdfs"


def test_a_user_with_name_and_home_needs_no_options(tmp_path, monkeypatch):
    account = SimpleNamespace(pw_name="me", pw_dir=str(tmp_path))
    monkeypatch.setattr(spark_environment, "_account", lambda: account)
    environ = {"HOME": str(tmp_path / "gone"), "LANG": "C.UTF-8"}
    complete(environ)
    assert environ == {
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "USER": "me",
        "LOGNAME": "me",
    }
    assert spark_environment.login_name(environ) is None


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C.UTF-8"}),
        ({"LANG": "POSIX"}, {"LANG": "POSIX", "LC_CTYPE": "C.UTF-8"}),
        ({}, {"LC_CTYPE": "C.UTF-8"}),
    ],
)
def test_an_ascii_locale_becomes_utf8(tmp_path, given, added):
    environ = {"HOME": str(tmp_path), "USER": "a", "LOGNAME": "a", **given}
    expected = {"HOME": str(tmp_path), "USER": "a", "LOGNAME": "a", **added, "PYTHONUTF8": "1"}
    complete(environ)
    environ.pop("SPARK_SUBMIT_OPTS", None)
    assert environ == expected


def test_a_host_whose_name_does_not_resolve_has_an_address(monkeypatch):
    def unresolved(*_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    environ = {}
    spark_environment.complete_address(environ, "spark://elsewhere:7077")
    resolved = dict(environ)
    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    spark_environment.complete_address(environ, "local[2]")
    assert environ == {"SPARK_LOCAL_IP": "127.0.0.1"}
    environ = {"SPARK_LOCAL_HOSTNAME": "me"}
    spark_environment.complete_address(environ, "local[2]")
    assert environ == {"SPARK_LOCAL_HOSTNAME": "me"}
    spark_environment.complete_address(resolved, "spark://elsewhere:7077")
    assert resolved["SPARK_LOCAL_IP"]


def test_special_characters_of_properties_are_escaped():
    assert java_properties({"spark.a-b/c_d": "1.5g"}) == "spark.a-b/c_d=1.5g\n"
    text = java_properties({"a b": "#!:=\\\n é😀"})
    assert text == (
        "a\\u0020b=\\u0023\\u0021\\u003a\\u003d\\u005c\\u000a\\u0020\\u00e9\\ud83d\\ude00\n"
    )
