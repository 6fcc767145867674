import os
from pathlib import Path

from stormkeeper.local import zookeeper_jvm


def test_class_path_has_only_what_the_server_needs():
    jars = [Path(jar).name for jar in zookeeper_jvm.classpath().split(os.pathsep)]
    assert any(jar.startswith("zookeeper-3") for jar in jars)
    assert len(jars) < 25


def test_class_path_falls_back_to_every_jar(monkeypatch):
    monkeypatch.setattr(zookeeper_jvm, "JARS", ("zookeeper", "no-such-library"))
    assert zookeeper_jvm.classpath().endswith(f"jars{os.sep}*")


def test_settings_are_written_as_java_reads_them():
    settings = zookeeper_jvm.server_settings(Path("/a\\b/é 𝄞"), "127.0.0.1", 2181)
    assert "dataDir=/a\\\\b/\\u00e9 \\ud834\\udd1e\n" in settings
    assert "clientPort=2181\n" in settings
