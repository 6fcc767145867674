import os
from pathlib import Path

from stormkeeper.local import dev_zookeeper


def test_class_path_has_only_what_the_server_needs():
    jars = [Path(jar).name for jar in dev_zookeeper.zookeeper_classpath().split(os.pathsep)]
    assert any(jar.startswith("zookeeper-3") for jar in jars)
    assert len(jars) < 25


def test_class_path_falls_back_to_every_jar(monkeypatch):
    monkeypatch.setattr(dev_zookeeper, "JARS", ("zookeeper", "no-such-library"))
    assert dev_zookeeper.zookeeper_classpath().endswith(f"jars{os.sep}*")


def test_settings_are_written_as_java_reads_them():
    settings = dev_zookeeper.server_settings(Path("/a\\b/é 𝄞"), "127.0.0.1", 2181)
    assert "dataDir=/a\\u005cb/\\u00e9\\u0020\\ud834\\udd1e\n" in settings
    assert "clientPort=2181\n" in settings


def test_settings_of_ones_own_prevail():
    settings = dev_zookeeper.server_settings(
        Path("/a"), "127.0.0.1", 2181, {"tickTime": "100", "initLimit": "5"}
    )
    assert "tickTime=100\n" in settings
    assert "initLimit=5\n" in settings
    assert settings.count("tickTime") == 1


def test_user_jvm_options_come_last():
    command = dev_zookeeper.server_command(
        Path("/java"), "jars", Path("/zoo.cfg"), Path("/log4j2"), options=["-Xmx64m"]
    )
    assert command.index("-Xmx64m") > command.index("-Xmx256m")
    assert command.index("-Xmx64m") < command.index("-cp")
