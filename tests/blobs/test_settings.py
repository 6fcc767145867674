from pathlib import Path

from stormkeeper import conf
from stormkeeper.blobs.distributor import BlobSettings


def test_the_defaults_are_storms():
    found = BlobSettings.from_conf(conf.defaults())
    assert found == BlobSettings(
        Path("storm-local/blobs"),
        Path("storm-local/nimbus/inbox"),
        chunk_bytes=65536,
        idle_secs=600,
        inbox_idle_secs=600,
        inbox_kept_secs=3600,
        period_secs=120,
        delay_secs=300.0,
    )
    assert found == BlobSettings(found.folder, found.inbox)


def test_the_folder_may_be_another_and_in_a_home():
    chosen = conf.defaults().with_values({"blobstore.dir": "~/blobs", "storm.local.dir": "/x"})
    assert BlobSettings.from_conf(chosen).folder == Path.home() / "blobs"
