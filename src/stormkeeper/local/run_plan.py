"""The processes of a local cluster, described before any of them is started; pure.

`cluster` follows this description. It knows no process by name, except the pipeline, of which it
shows more than of the others. A further process is a further row here. The supervisors start the
workers.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf import Address, Conf, load
from stormkeeper.conf.folders import folder
from stormkeeper.daemon.children import RUN_MARK
from stormkeeper.daemon.lifecycle import DIE_WITH_PARENT
from stormkeeper.pacemaker.client.client_settings import access_of, for_a_file
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
class ServerAddresses:
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


def topology_overrides(overrides: Sequence[str]) -> list[str]:
    """Return those of the user's settings that the topology gets; `ignored_keys` are the others."""
    return [override for override in overrides if key_of(override) not in OWN_KEYS]


def ignored_keys(overrides: Sequence[str]) -> list[str]:
    """Return the keys of the user's settings by which the processes of a run find each other."""
    return [key for key in map(key_of, overrides) if key in OWN_KEYS]


def run_conf(
    conf: Conf, overrides: Sequence[str], directory: Path, places: ServerAddresses
) -> Conf:
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


def topology_conf(
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
        files=[*conf.files],
        overrides=topology_overrides(overrides),
        strict=strict,
        also_known=[*own],
        warn=warn,
    )
    checkpoints = chosen[_CHECKPOINTS]
    if checkpoints is None or ":" in checkpoints:
        return chosen
    # The worker has a current folder of its own.
    return chosen.with_values({_CHECKPOINTS: str(folder(_CHECKPOINTS, checkpoints).absolute())})


_ROOT = "storm.zookeeper.root"
_TLS = "storm.zookeeper.ssl.enable"


def shell_commands(conf: Conf, places: ServerAddresses, name: str) -> list[str]:
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


PIPELINE = "pipeline"

#: Without the current folder on its path, where a file may have the name of a library's module.
_PYTHON = (sys.executable, "-P", "-m")

#: The port of the first supervisor's slot; the next one's is the next.
FIRST_SLOT = 6700

_SLOTS = "supervisor.slots.ports"
_CAPACITY = "supervisor.cpu.capacity"

_LISTENING = re.compile(r"^(?:zookeeper|pacemaker|nimbus) listening on (\S+)$")
_REGISTERED = re.compile(r"^supervisor ready (\S+)$")
_WRITING = re.compile(r"^pipeline writing to (.+)$")


class Stage(IntEnum):
    """When a process is started: with all others of its stage."""

    #: At once. Those who need another one wait for it.
    CLUSTER = 1
    #: What has a Spark of its own, which would slow the worker's start down: once the worker has
    #: counted its first rows.
    ANALYSES = 2


@dataclass(frozen=True)
class RunRequest:
    """What to run.

    Parameters
    ----------
    topology
        The script: a topology, or any PySpark streaming script.
    overrides
        The user's own ``key=value`` settings, which win over the topology's.
    seconds
        How long to run once a worker beats; None until Ctrl-C or until the topology ends.
    report
        Where to write what was seen, as JSON.
    strict
        Whether an unknown configuration key is an error.
    arguments
        What the script finds in ``sys.argv``.
    py_files
        Modules and archives of modules that the script can import.
    pipeline
        Whether the heartbeat pipeline runs beside it.
    """

    topology: Path
    overrides: Sequence[str] = ()
    seconds: float | None = None
    report: Path | None = None
    strict: bool = False
    arguments: Sequence[str] = ()
    py_files: Sequence[Path] = ()
    pipeline: bool = True


@dataclass(frozen=True)
class RunSite:
    """Where a cluster runs.

    Parameters
    ----------
    directory
        Holds its files; nothing outlives it.
    mark
        What its processes carry in their environment, and the workers too.
    parent
        Process id of the one that starts them, with which they end.
    places
        Where the servers listen.
    machines
        Names of the supervisors, each of which is a machine to the others.
    cores
        What this machine has.
    """

    directory: Path
    mark: str
    parent: int
    places: ServerAddresses
    machines: tuple[str, ...] = ("supervisor 1", "supervisor 2")
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    @property
    def conf_file(self) -> Path:
        """The configuration that all processes read."""
        return self.directory / "cluster.yaml"

    @property
    def temporary(self) -> Path:
        """The folder for what Spark and the JVM put aside."""
        return self.directory / "tmp"

    def folder(self, name: str) -> Path:
        """Return the ``storm.local.dir`` of a process that has one of its own."""
        return self.directory / name.replace(" ", "-")

    def environment(self) -> dict[str, str]:
        """Return what every process has in its environment."""
        return {
            RUN_MARK: self.mark,
            DIE_WITH_PARENT: str(self.parent),
            # Whatever Spark and the JVM put aside goes with the run, even where they are killed.
            "TMPDIR": str(self.temporary),
            "SPARK_LOCAL_DIRS": str(self.temporary),
        }


@dataclass(frozen=True)
class PlannedProcess:
    """One process, before it is started.

    Parameters
    ----------
    name
        What its user calls it.
    command, environment
        How it is started; `environment` is added to that of who starts it.
    ready
        The line on standard output by which it says that it is ready.
    ready_note
        What its user is told then; ``{}`` is the first group of `ready`.
    stage
        When it is started.
    stop_order
        When it is stopped: together with those of the same number, after those of lower ones.
    address
        Where it listens; empty where it does not.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ready: re.Pattern[str]
    ready_note: str
    stage: Stage
    stop_order: int
    address: str = ""


def plan_processes(conf: Conf, site: RunSite, *, pipeline: bool) -> tuple[PlannedProcess, ...]:
    """Return the processes of a cluster, in the order in which they are started and shown.

    The workers are the supervisors' own, and have ended before anything here is stopped. What keeps
    their last heartbeats is stopped late, and what all rest on last.

    Parameters
    ----------
    conf
        The user's configuration.
    site
        Where.
    pipeline
        Whether the heartbeat pipeline runs beside them.
    """
    places = site.places
    rows = [_server(site, "zookeeper", "dev-zookeeper", str(places.zookeeper), stop_order=3)]
    for number, address in enumerate(places.nimbuses, 1):
        port = ("-c", f"nimbus.thrift.port={address.port}")
        own = (*port, *_of_its_own(site, f"nimbus {number}"))
        rows.append(_server(site, f"nimbus {number}", "nimbus", str(address), *own, stop_order=1))
    rows += [
        _supervisor(
            site,
            name,
            conf[_SLOTS] if conf.is_override(_SLOTS) else [slot],
            has_capacity=conf.is_override(_CAPACITY),
        )
        for slot, name in enumerate(site.machines, FIRST_SLOT)
    ]
    for number, address in enumerate(places.pacemakers, 1):
        own = ("-c", f"pacemaker.port={address.port}")
        rows.append(
            _server(site, f"pacemaker {number}", "pacemaker", str(address), *own, stop_order=2)
        )
    if pipeline:
        rows.append(_pipeline(site))
    return tuple(rows)


def _server(
    site: RunSite, name: str, command: str, address: str, *options: str, stop_order: int
) -> PlannedProcess:
    return PlannedProcess(
        name=name,
        command=_storm(site, command, *options),
        environment=site.environment(),
        ready=_LISTENING,
        ready_note=f"{name} listens on {{}}",
        stage=Stage.CLUSTER,
        stop_order=stop_order,
        address=address,
    )


def _supervisor(
    site: RunSite, name: str, slots: Sequence[int], *, has_capacity: bool
) -> PlannedProcess:
    ports = ", ".join(map(str, slots))
    options = ("-c", f"{_SLOTS}=[{ports}]", *_of_its_own(site, name))
    if not has_capacity:
        # All supervisors of the run share the machine.
        options += ("-c", f"{_CAPACITY}={100 * site.cores / len(site.machines):g}")
    return PlannedProcess(
        name=name,
        command=_storm(site, "supervisor", *options),
        environment=site.environment(),
        ready=_REGISTERED,
        ready_note=f"{name} has the slots {ports}",
        stage=Stage.CLUSTER,
        stop_order=1,
    )


def _pipeline(site: RunSite) -> PlannedProcess:
    return PlannedProcess(
        name=PIPELINE,
        command=_storm(site, "pipeline"),
        environment=site.environment(),
        ready=_WRITING,
        ready_note="pipeline writes its tables to {}",
        stage=Stage.ANALYSES,
        stop_order=1,
    )


def _of_its_own(site: RunSite, name: str) -> tuple[str, ...]:
    return ("-c", f"storm.local.dir={json.dumps(str(site.folder(name)))}")


def _storm(site: RunSite, command: str, *options: str) -> tuple[str, ...]:
    return (*_PYTHON, "stormkeeper", command, "--config", str(site.conf_file), *options)
