import os
from pathlib import Path

import pytest

from stormkeeper.errors import LocalClusterError
from stormkeeper.local.java import find_java, java_version


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


def test_too_old_a_java_home_gives_way_to_the_path(tmp_path):
    fake_java(tmp_path / "home", "11.0.1")
    on_path = fake_java(tmp_path / "other", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environ) == on_path


def test_no_java_is_one_sentence_that_says_what_to_do(tmp_path):
    with pytest.raises(LocalClusterError, match=r"^Java 17 or newer is needed .*install") as caught:
        find_java({"PATH": str(tmp_path)})
    assert "\n" not in str(caught.value)


def test_too_old_a_java_is_named(tmp_path):
    old = fake_java(tmp_path / "home", "1.8.0_392")
    with pytest.raises(LocalClusterError, match="version 8") as caught:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""})
    assert str(old) in str(caught.value)


def test_the_java_of_this_machine_is_found():
    assert os.access(find_java(), os.X_OK)
