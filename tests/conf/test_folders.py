import pytest

from stormkeeper.conf.folders import folder
from stormkeeper.errors import ConfigError


def test_a_user_s_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder("storm.local.dir", "~/storm") == tmp_path / "storm"
    assert str(folder("storm.local.dir", "data/~/storm")) == "data/~/storm"


def test_the_home_of_nobody_is_said():
    with pytest.raises(ConfigError, match=r"^storm\.local\.dir: '~no-such-user/a' begins with"):
        folder("storm.local.dir", "~no-such-user/a")
