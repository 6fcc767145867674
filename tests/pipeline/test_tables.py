"""Where the tables and the checkpoint are."""

from pathlib import Path

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.pipeline import tables


def places(**given):
    return defaults().with_values({f"pipeline.{key}.dir": str(at) for key, at in given.items()})


def test_tables_folder_defaults_to_the_local_folder():
    conf = defaults()
    assert str(tables.tables_folder(conf)) == f"{conf['storm.local.dir']}/tables"
    assert str(tables.tables_folder(places(tables="/data/heartbeats"))) == "/data/heartbeats"


def test_checkpoint_defaults_to_the_folder_of_the_tables(tmp_path):
    liveness_folder = tmp_path / "liveness"
    found = tables.query_folders(places(tables=tmp_path), "liveness")
    assert found == (liveness_folder, liveness_folder / ".checkpoint")
    conf = places(tables=tmp_path, checkpoint=tmp_path / "c")
    assert tables.query_folders(conf, "liveness") == (liveness_folder, tmp_path / "c" / "liveness")


def test_all_of_them_may_be_in_the_users_home():
    conf = defaults().with_values({"storm.local.dir": "~/storm"})
    assert tables.tables_folder(conf) == Path.home() / "storm/tables"
    conf = places(tables="~/tables", checkpoint="~/checkpoint")
    assert tables.tables_folder(conf) == Path.home() / "tables"
    assert tables.checkpoints_folder(conf) == Path.home() / "checkpoint"


@pytest.mark.parametrize("url", ["s3a://bucket/tables", "hdfs://nn:8020/tables", "file:/tables"])
def test_a_url_is_not_taken_for_a_folder(url):
    with pytest.raises(ConfigError, match=rf"^pipeline\.tables\.dir is a .* as '{url}'"):
        tables.tables_folder(places(tables=url))
    with pytest.raises(ConfigError, match=rf"^pipeline\.checkpoint\.dir is a .* as '{url}'"):
        tables.checkpoints_folder(places(checkpoint=url))
