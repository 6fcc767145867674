from pathlib import Path

from stormkeeper import conf
from stormkeeper.blobs.settings import Settings


def test_the_defaults_are_storms():
    found = Settings.from_conf(conf.defaults())
    assert found == Settings(
        Path("storm-local/blobs"),
        Path("storm-local/nimbus/inbox"),
        chunk_bytes=65536,
        idle_secs=600,
        inbox_idle_secs=600,
        inbox_kept_secs=3600,
        period_secs=120,
        delay_secs=300.0,
    )
    assert found == Settings(found.folder, found.inbox)


def test_the_folder_may_be_another_and_in_a_home():
    chosen = conf.defaults().with_values({"blobstore.dir": "~/blobs", "storm.local.dir": "/x"})
    assert Settings.from_conf(chosen).folder == Path.home() / "blobs"
