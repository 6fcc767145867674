"""What a Pacemaker takes at its start, and what its log then says."""

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.state import factory
from stormkeeper.state.storm.codec import Codec


def test_it_starts_with_what_only_storms_daemons_can_use(start_pacemaker, tmp_path):
    file = tmp_path / "storm.yaml"
    file.write_text(
        "storm.cluster.state.store: com.my.Store\n"
        "storm.meta.serialization.delegate:"
        " org.apache.storm.serialization.DefaultSerializationDelegate\n"
        "nimbus.seeds: []\n"
        'java.security.auth.login.config: ""\n'
        "supervisor.slots.ports:\n"
    )
    assert start_pacemaker(options=["--config", str(file)]).stop() == 0


def test_a_store_that_is_none_of_ours_is_refused_by_who_connects_to_it():
    conf = defaults().with_values({"storm.cluster.state.store": "com.my.Store"})
    for connect in (factory.connect, factory.connect_heartbeats):
        with pytest.raises(ConfigError, match=r"com\.my\.Store.*ZKStateStorageFactory, .*PaceM"):
            connect(conf)


def test_a_delegate_that_is_none_of_ours_is_refused_by_who_writes():
    name = "org.apache.storm.serialization.DefaultSerializationDelegate"
    conf = defaults().with_values({"storm.meta.serialization.delegate": name})
    with pytest.raises(ConfigError, match=rf"{name}.*must be one of .*GzipThriftSerialization"):
        Codec.from_conf(conf)
