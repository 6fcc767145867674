from pathlib import Path

import pytest

from stormkeeper.conf.folders import folder, on_disk
from stormkeeper.errors import ConfigError


def test_a_user_s_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder("storm.local.dir", "~/storm") == tmp_path / "storm"
    assert str(folder("storm.local.dir", "data/~/storm")) == "data/~/storm"


def test_the_home_of_nobody_is_said():
    with pytest.raises(ConfigError, match=r"^storm\.local\.dir: '~no-such-user/a' begins with"):
        folder("storm.local.dir", "~no-such-user/a")


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("~/a", f"{Path.home()}/a"),
        ("a/b", None),
        ("hdfs://host/a", None),
    ],
)
def test_what_is_on_a_disk(location, path):
    found = on_disk(location)
    assert (None if found is None else str(found)) == path
