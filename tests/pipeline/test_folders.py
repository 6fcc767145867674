"""Where the tables and the checkpoint are."""

from pathlib import Path

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.pipeline import folders


def places(**given):
    return defaults().with_values({f"pipeline.{key}.dir": str(at) for key, at in given.items()})


def test_the_tables_are_below_the_local_folder_unless_they_have_their_own():
    conf = defaults()
    assert str(folders.of_tables(conf)) == f"{conf['storm.local.dir']}/tables"
    assert str(folders.of_tables(places(tables="/data/heartbeats"))) == "/data/heartbeats"


def test_the_checkpoint_follows_the_tables_unless_it_is_configured(tmp_path):
    assert folders.of_checkpoint(places(tables=tmp_path)) == tmp_path / ".checkpoint"
    conf = places(tables=tmp_path, checkpoint=tmp_path / "c")
    assert folders.of_checkpoint(conf) == tmp_path / "c"


def test_all_of_them_may_be_in_the_users_home():
    conf = defaults().with_values({"storm.local.dir": "~/storm"})
    assert folders.of_tables(conf) == Path.home() / "storm/tables"
    conf = places(tables="~/tables", checkpoint="~/checkpoint")
    assert folders.of_tables(conf) == Path.home() / "tables"
    assert folders.of_checkpoint(conf) == Path.home() / "checkpoint"


@pytest.mark.parametrize("url", ["s3a://bucket/tables", "hdfs://nn:8020/tables", "file:/tables"])
def test_a_url_is_not_taken_for_a_folder(url):
    with pytest.raises(ConfigError, match=rf"^pipeline\.tables\.dir is a .* as '{url}'"):
        folders.of_tables(places(tables=url))
    with pytest.raises(ConfigError, match=rf"^pipeline\.checkpoint\.dir is a .* as '{url}'"):
        folders.of_checkpoint(places(checkpoint=url))
