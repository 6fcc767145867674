"""What the processes of a local run are configured with; pure.

A ``storm.yaml`` belongs to a whole cluster, which may run on this machine as well. A run takes from
it how a cluster behaves, but no address, port or folder of that cluster's daemons.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf import Address, Conf, load
from stormkeeper.conf.folders import folder
from stormkeeper.pacemaker.client.client_settings import for_a_file
from stormkeeper.pipeline import tables

#: All processes of a run are on the loopback interface.
HOST: Final = "127.0.0.1"

PACEMAKER_STATE: Final = "org.apache.storm.pacemaker.pacemaker_state_factory"

_TABLES: Final = "pipeline.tables.dir"
_CHECKPOINTS: Final = "topology.checkpoint.dir"
_HTTP_PORTS: Final = ("pacemaker.metrics.port", "nimbus.metrics.port", "logviewer.port")

#: Each run sets these keys itself; nobody else can.
OWN_KEYS: Final = frozenset(
    {
        "storm.local.dir",
        "storm.local.hostname",
        "storm.log.dir",
        "storm.zookeeper.servers",
        "storm.zookeeper.port",
        "storm.zookeeper.ssl.enable",
        "storm.cluster.state.store",
        "pacemaker.servers",
        "pacemaker.host",
        "pacemaker.port",
        "pacemaker.bind.host",
        "pacemaker.metrics.bind.host",
        "nimbus.seeds",
        "nimbus.host",
        "nimbus.thrift.port",
        "nimbus.bind.host",
        "nimbus.metrics.bind.host",
        "blobstore.dir",
        "supervisor.bind.host",
        "topology.checkpoint.shared",
        "pipeline.checkpoint.dir",
        *_HTTP_PORTS,
    }
)

#: What a run has where nothing is given after ``-c``: what a file says is for that cluster.
_GIVEN: Final[dict[str, Any]] = {
    "pipeline.metrics.port": None,
    "pipeline.metrics.bind.host": None,
    "supervisor.slots.ports": None,
    # A run may be over before statistics would come round again.
    "pipeline.statistics.secs": 0,
    # ZooKeeper is on this machine, and starts at the same time as those who ask for it.
    "storm.zookeeper.retry.interval": 100,
    "storm.zookeeper.retry.intervalceiling.millis": 300,
}


@dataclass(frozen=True)
class Places:
    """Where the servers of a run listen."""

    zookeeper: Address
    pacemakers: tuple[Address, ...]
    nimbuses: tuple[Address, ...]


def key_of(override: str) -> str:
    """Return the key of a setting as ``-c`` takes it, ``key=value``."""
    return override.partition("=")[0].strip()


def keeps_tables(conf: Conf) -> bool:
    """Return whether the user names a folder for the tables, which then outlive the run."""
    return conf[_TABLES] is not None and conf.is_override(_TABLES)


def tables_folder(conf: Conf, directory: Path) -> Path:
    """Return where the tables of a run in `directory` are.

    Raises
    ------
    ConfigError
        When the user names a URL.
    """
    return (tables.tables_folder(conf) if keeps_tables(conf) else directory / "tables").resolve()


def given(overrides: Sequence[str]) -> list[str]:
    """Return those of the user's settings that the topology gets; `passed_over` are the others."""
    return [override for override in overrides if key_of(override) not in OWN_KEYS]


def passed_over(overrides: Sequence[str]) -> list[str]:
    """Return the keys of the user's settings by which the processes of a run find each other."""
    return [key for key in map(key_of, overrides) if key in OWN_KEYS]


def of_run(conf: Conf, overrides: Sequence[str], directory: Path, places: Places) -> Conf:
    """Return what the processes of a run read.

    Parameters
    ----------
    conf
        The user's configuration.
    overrides
        What of it was given with ``-c``. What only the topology knows of these is sent with it, and
        goes to nobody else.
    directory
        The run's own folder.
    places
        Where the servers listen. Each is told its own port and folder by its command.
    """
    keys = [key_of(override) for override in overrides]
    values = {key: of_a_run for key, of_a_run in _GIVEN.items() if not conf.is_override(key)}
    if not conf.is_override(_CHECKPOINTS):
        values[_CHECKPOINTS] = str(directory / "checkpoints")
    # One port cannot be that of two processes.
    values |= {key: None if conf[key] is None else 0 for key in _HTTP_PORTS}
    return for_a_file(conf.without_unknown(keys)).with_values(
        values
        | {
            "storm.local.dir": str(directory),
            "storm.local.hostname": HOST,
            "storm.log.dir": None,
            "storm.zookeeper.servers": [places.zookeeper.host],
            "storm.zookeeper.port": places.zookeeper.port,
            "storm.zookeeper.ssl.enable": False,
            "storm.cluster.state.store": PACEMAKER_STATE,
            "pacemaker.servers": [str(address) for address in places.pacemakers],
            "pacemaker.bind.host": HOST,
            "pacemaker.metrics.bind.host": None,
            "nimbus.seeds": [str(address) for address in places.nimbuses],
            "nimbus.host": None,
            "nimbus.bind.host": HOST,
            "nimbus.metrics.bind.host": None,
            "blobstore.dir": None,
            "supervisor.bind.host": HOST,
            # Both supervisors are on this disk.
            "topology.checkpoint.shared": True,
            _TABLES: str(tables_folder(conf, directory)),
            "pipeline.checkpoint.dir": None,
        }
    )


def of_topology(
    conf: Conf,
    overrides: Sequence[str],
    own: Collection[str],
    *,
    strict: bool,
    warn: Callable[[str], None],
) -> Conf:
    """Return the configuration that a topology is submitted with.

    Parameters
    ----------
    conf
        The user's.
    overrides
        What of it was given with ``-c``; the run's own keys are left out.
    own
        The keys that the topology brings along, which are known thereby.
    strict
        Whether an unknown key is an error.
    warn
        Called with what is said of it else.

    Raises
    ------
    ConfigError
        A key is unknown and that is an error.
    """
    chosen = load(
        files=[*conf.files], overrides=given(overrides), strict=strict, also_known=[*own], warn=warn
    )
    checkpoints = chosen[_CHECKPOINTS]
    if checkpoints is None or ":" in checkpoints:
        return chosen
    # The worker has a current folder of its own.
    return chosen.with_values({_CHECKPOINTS: str(folder(_CHECKPOINTS, checkpoints).absolute())})
