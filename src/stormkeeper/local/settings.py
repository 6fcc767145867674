"""What the processes of a local run are configured with; pure.

A ``storm.yaml`` belongs to a whole cluster, which may run on this machine as well. A run takes from
it how a cluster behaves, but no address, port or folder of that cluster's daemons.
"""

from collections.abc import Sequence
from pathlib import Path

from stormkeeper.conf import Address, Conf
from stormkeeper.pacemaker.client.settings import for_a_file
from stormkeeper.pipeline import folders

PACEMAKER_STATE = "org.apache.storm.pacemaker.pacemaker_state_factory"

_METRICS_PORT = "pacemaker.metrics.port"
_TABLES = "pipeline.tables.dir"

#: Each run sets these keys itself; nobody else can.
OWN_KEYS = frozenset(
    {
        "storm.local.dir",
        "storm.zookeeper.servers",
        "storm.zookeeper.port",
        "storm.zookeeper.ssl.enable",
        "storm.cluster.state.store",
        "pacemaker.servers",
        "pacemaker.host",
        "pacemaker.port",
        "pacemaker.bind.host",
        _METRICS_PORT,
        "pacemaker.metrics.bind.host",
        "pipeline.checkpoint.dir",
    }
)

#: A value in a file is for that cluster; a value after ``-c`` is for the run.
GIVEN_KEYS = (
    "pipeline.metrics.port",
    "pipeline.metrics.bind.host",
    "topology.checkpoint.dir",
)


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
    return (folders.of_tables(conf) if keeps_tables(conf) else directory / "tables").resolve()


def given(overrides: Sequence[str]) -> list[str]:
    """Return those of the user's settings that the topology gets; `passed_over` are the others."""
    return [override for override in overrides if key_of(override) not in OWN_KEYS]


def passed_over(overrides: Sequence[str]) -> list[str]:
    """Return the keys of the user's settings by which the processes of a run find each other."""
    return [key for key in map(key_of, overrides) if key in OWN_KEYS]


def of_run(
    conf: Conf,
    overrides: Sequence[str],
    directory: Path,
    zookeeper: Address,
    pacemakers: Sequence[Address],
) -> Conf:
    """Return what the processes of a run read.

    Parameters
    ----------
    conf
        The user's configuration.
    overrides
        What of it was given with ``-c``. What only the topology knows of these goes to the worker
        as the user gave it, and to nobody else.
    directory
        The run's own folder.
    zookeeper, pacemakers
        Where the servers listen. Each Pacemaker is told its port by its command.
    """
    keys = [key_of(override) for override in overrides]
    values = {key: None for key in GIVEN_KEYS if not conf.is_override(key)}
    return for_a_file(conf.without_unknown(keys)).with_values(
        values
        | {
            "storm.local.dir": str(directory),
            "storm.zookeeper.servers": [zookeeper.host],
            "storm.zookeeper.port": zookeeper.port,
            "storm.zookeeper.ssl.enable": False,
            "storm.cluster.state.store": PACEMAKER_STATE,
            "pacemaker.servers": [str(address) for address in pacemakers],
            "pacemaker.bind.host": pacemakers[0].host,
            # One port cannot be that of two Pacemakers.
            _METRICS_PORT: None if conf[_METRICS_PORT] is None else 0,
            "pacemaker.metrics.bind.host": None,
            _TABLES: str(tables_folder(conf, directory)),
            "pipeline.checkpoint.dir": None,
        }
    )
