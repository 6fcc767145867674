"""Commands that look into a local cluster from another shell."""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from stormkeeper.conf import Conf
from stormkeeper.local.settings import Places
from stormkeeper.pacemaker.client.client_settings import access_of

_ROOT = "storm.zookeeper.root"
_TLS = "storm.zookeeper.ssl.enable"


def commands(conf: Conf, places: Places, name: str) -> list[str]:
    """Return the commands that show the topology, the heartbeats and the cluster state.

    Parameters
    ----------
    conf
        What the cluster runs with, but for its addresses.
    places
        Where it listens.
    name
        Of the topology.
    """
    zookeeper = places.zookeeper
    pacemakers, seeds = (", ".join(map(str, of)) for of in (places.pacemakers, places.nimbuses))
    heartbeats = [f"pacemaker.servers=[{pacemakers}]"]
    heartbeats += [f"{key}={value}" for key, value in access_of(conf).items()]
    state = [f"storm.zookeeper.servers={zookeeper.host}", f"storm.zookeeper.port={zookeeper.port}"]
    state += [f"{_ROOT}={conf[_ROOT]}"] if _ROOT in conf.changed() else []
    state += [f"{_TLS}=false"] if conf[_TLS] else []
    return [
        _command(f"status {name}", [f"nimbus.seeds=[{seeds}]"]),
        _command("heartbeats list /workerbeats", heartbeats),
        _command("state tree", state),
    ]


def _command(name: str, settings: Iterable[str]) -> str:
    storm = sys.argv[0] if Path(sys.argv[0]).name in {"storm", "stormkeeper"} else "storm"
    options = " ".join(f"-c {shlex.quote(setting)}" for setting in settings)
    return f"{storm} {name} {options}"
