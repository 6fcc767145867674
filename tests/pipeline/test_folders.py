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


def test_a_querys_checkpoint_is_beside_its_tables_unless_it_is_configured(tmp_path):
    of_tables = tmp_path / "liveness"
    found = folders.of_query(places(tables=tmp_path), "liveness")
    assert found == (of_tables, of_tables / ".checkpoint")
    conf = places(tables=tmp_path, checkpoint=tmp_path / "c")
    assert folders.of_query(conf, "liveness") == (of_tables, tmp_path / "c" / "liveness")


def test_all_of_them_may_be_in_the_users_home():
    conf = defaults().with_values({"storm.local.dir": "~/storm"})
    assert folders.of_tables(conf) == Path.home() / "storm/tables"
    conf = places(tables="~/tables", checkpoint="~/checkpoint")
    assert folders.of_tables(conf) == Path.home() / "tables"
    assert folders.of_checkpoints(conf) == Path.home() / "checkpoint"


@pytest.mark.parametrize("url", ["s3a://bucket/tables", "hdfs://nn:8020/tables", "file:/tables"])
def test_a_url_is_not_taken_for_a_folder(url):
    with pytest.raises(ConfigError, match=rf"^pipeline\.tables\.dir is a .* as '{url}'"):
        folders.of_tables(places(tables=url))
    with pytest.raises(ConfigError, match=rf"^pipeline\.checkpoint\.dir is a .* as '{url}'"):
        folders.of_checkpoints(places(checkpoint=url))
