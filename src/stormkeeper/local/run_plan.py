"""The plan of a local run: configuration and processes, before any process starts; pure.

A ``storm.yaml`` may describe a real cluster on this machine: a run takes its behaviour, but no
address, port or folder of its daemons.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf import Address, Conf, load
from stormkeeper.conf.folders import folder
from stormkeeper.daemon.children import RUN_MARK
from stormkeeper.pacemaker.client.client_settings import access_of, for_a_file
from stormkeeper.pipeline import tables

HOST: Final = "127.0.0.1"

PACEMAKER_STATE: Final = "org.apache.storm.pacemaker.pacemaker_state_factory"

_TABLES: Final = "pipeline.tables.dir"
_CHECKPOINTS: Final = "topology.checkpoint.dir"
_HTTP_PORTS: Final = ("pacemaker.metrics.port", "nimbus.metrics.port", "logviewer.port")

#: Values that the run itself sets, and ``-c`` cannot.
_FIXED: Final[dict[str, Any]] = {
    "storm.local.hostname": HOST,
    "storm.log.dir": None,
    "storm.zookeeper.ssl.enable": False,
    "storm.cluster.state.store": PACEMAKER_STATE,
    "pacemaker.bind.host": HOST,
    "pacemaker.metrics.bind.host": None,
    "nimbus.host": None,
    "nimbus.bind.host": HOST,
    "nimbus.metrics.bind.host": None,
    "blobstore.dir": None,
    "supervisor.bind.host": HOST,
    # Both supervisors are on the same disk.
    "topology.checkpoint.shared": True,
    "pipeline.checkpoint.dir": None,
}

#: Keys that only the run itself sets.
OWN_KEYS: Final = frozenset(
    {
        *_FIXED,
        *_HTTP_PORTS,
        "storm.local.dir",
        "storm.zookeeper.servers",
        "storm.zookeeper.port",
        "pacemaker.servers",
        "pacemaker.host",
        "pacemaker.port",
        "nimbus.seeds",
        "nimbus.thrift.port",
    }
)

#: Defaults of a run, which ``-c`` overrides and a file, meant for its own cluster, does not.
_GIVEN: Final[dict[str, Any]] = {
    "pipeline.metrics.port": None,
    "pipeline.metrics.bind.host": None,
    "supervisor.slots.ports": None,
    # A run may end before a longer period passes.
    "pipeline.statistics.secs": 0,
    # ZooKeeper is on this machine, and starts together with its clients.
    "storm.zookeeper.retry.interval": 100,
    "storm.zookeeper.retry.intervalceiling.millis": 300,
}


@dataclass(frozen=True)
class ServerAddresses:
    """Addresses of the servers of a run."""

    zookeeper: Address
    pacemakers: tuple[Address, ...]
    nimbuses: tuple[Address, ...]


def key_of(override: str) -> str:
    return override.partition("=")[0].strip()


def keeps_tables(conf: Conf) -> bool:
    """Return whether the user names a folder for the tables, which then outlive the run."""
    return conf[_TABLES] is not None and conf.is_override(_TABLES)


def tables_folder(conf: Conf, directory: Path) -> Path:
    """Return the folder of the tables; raises `ConfigError` if the user names a URL."""
    return (tables.tables_folder(conf) if keeps_tables(conf) else directory / "tables").resolve()


def topology_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the user's settings for the topology: all but `ignored_keys`."""
    return [override for override in overrides if key_of(override) not in OWN_KEYS]


def ignored_keys(overrides: Sequence[str]) -> list[str]:
    """Return the user's keys that only the run itself sets."""
    return [key for key in map(key_of, overrides) if key in OWN_KEYS]


def run_conf(
    conf: Conf, overrides: Sequence[str], directory: Path, places: ServerAddresses
) -> Conf:
    """Return the configuration of a run's processes; command lines add port and folder.

    Keys of ``-c`` that only the topology knows are sent with the topology.
    """
    keys = [key_of(override) for override in overrides]
    values = {key: of_a_run for key, of_a_run in _GIVEN.items() if not conf.is_override(key)}
    if not conf.is_override(_CHECKPOINTS):
        values[_CHECKPOINTS] = str(directory / "checkpoints")
    # Two processes cannot share a port.
    values |= {key: None if conf[key] is None else 0 for key in _HTTP_PORTS}
    return for_a_file(conf.without_unknown(keys)).with_values(
        values
        | _FIXED
        | {
            "storm.local.dir": str(directory),
            "storm.zookeeper.servers": [places.zookeeper.host],
            "storm.zookeeper.port": places.zookeeper.port,
            "pacemaker.servers": [str(address) for address in places.pacemakers],
            "nimbus.seeds": [str(address) for address in places.nimbuses],
            _TABLES: str(tables_folder(conf, directory)),
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

    `own` are keys that the topology itself sets. Another unknown key is an error (`ConfigError`) if
    `strict`, else a warning.
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
    # Workers have another current folder.
    return chosen.with_values({_CHECKPOINTS: str(folder(_CHECKPOINTS, checkpoints).absolute())})


_ROOT = "storm.zookeeper.root"
_TLS = "storm.zookeeper.ssl.enable"


def shell_commands(conf: Conf, places: ServerAddresses, name: str) -> list[str]:
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

#: -P: a file in the current folder may have the name of a library's module.
_PYTHON = (sys.executable, "-P", "-m")

#: Of the first supervisor; the second has the next port.
FIRST_SLOT = 6700

_SLOTS = "supervisor.slots.ports"
_CAPACITY = "supervisor.cpu.capacity"

_LISTENING = re.compile(r"^(?:zookeeper|pacemaker|nimbus) listening on (\S+)$")
_REGISTERED = re.compile(r"^supervisor ready (\S+)$")
_WRITING = re.compile(r"^pipeline writing to (.+)$")


@dataclass(frozen=True)
class RunRequest:
    """The user's request; `seconds` counts from the first heartbeat of a worker."""

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
    """Files, addresses and machines (supervisors) of a run.

    `mark` is in the environment of the run's processes, also workers.
    """

    directory: Path
    mark: str
    places: ServerAddresses
    machines: tuple[str, ...] = ("supervisor 1", "supervisor 2")
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    @property
    def conf_file(self) -> Path:
        return self.directory / "cluster.yaml"

    @property
    def temporary(self) -> Path:
        """For Spark and the JVM."""
        return self.directory / "tmp"

    def folder(self, name: str) -> Path:
        """Return the ``storm.local.dir`` of a process."""
        return self.directory / name.replace(" ", "-")

    def environment(self) -> dict[str, str]:
        return {
            RUN_MARK: self.mark,
            # These files go with the run, even if their processes are killed.
            "TMPDIR": str(self.temporary),
            "SPARK_LOCAL_DIRS": str(self.temporary),
        }


@dataclass(frozen=True)
class PlannedProcess:
    """A process before the start.

    `ready` matches the line of a ready process; `ready_note` is then printed, with the first group
    for ``{}``. Processes of a lower `stop_order` stop first.
    """

    name: str
    command: tuple[str, ...]
    ready: re.Pattern[str]
    ready_note: str
    stop_order: int
    address: str = ""


def plan_processes(conf: Conf, site: RunSite, *, pipeline: bool) -> tuple[PlannedProcess, ...]:
    """Return the processes of a cluster, in the order of start and display.

    The workers end first; the Pacemakers, which keep their last heartbeats, late; ZooKeeper last.
    """
    places = site.places
    rows = [_server(site, "zookeeper", "dev-zookeeper", places.zookeeper, stop_order=3)]
    for number, address in enumerate(places.nimbuses, 1):
        port = ("-c", f"nimbus.thrift.port={address.port}")
        own = (*port, *_of_its_own(site, f"nimbus {number}"))
        rows.append(_server(site, f"nimbus {number}", "nimbus", address, *own, stop_order=1))
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
        rows.append(_server(site, f"pacemaker {number}", "pacemaker", address, *own, stop_order=2))
    if pipeline:
        note = "pipeline writes its tables to {}"
        command = _storm(site, "pipeline")
        rows.append(PlannedProcess(PIPELINE, command, _WRITING, note, stop_order=1))
    return tuple(rows)


def _server(
    site: RunSite, name: str, command: str, address: Address, *options: str, stop_order: int
) -> PlannedProcess:
    note = f"{name} listens on {{}}"
    started = _storm(site, command, *options)
    return PlannedProcess(name, started, _LISTENING, note, stop_order, str(address))


def _supervisor(
    site: RunSite, name: str, slots: Sequence[int], *, has_capacity: bool
) -> PlannedProcess:
    ports = ", ".join(map(str, slots))
    options = ("-c", f"{_SLOTS}=[{ports}]", *_of_its_own(site, name))
    if not has_capacity:
        # The supervisors share one machine.
        options += ("-c", f"{_CAPACITY}={100 * site.cores / len(site.machines):g}")
    command = _storm(site, "supervisor", *options)
    return PlannedProcess(name, command, _REGISTERED, f"{name} has the slots {ports}", stop_order=1)


def _of_its_own(site: RunSite, name: str) -> tuple[str, ...]:
    return ("-c", f"storm.local.dir={json.dumps(str(site.folder(name)))}")


def _storm(site: RunSite, command: str, *options: str) -> tuple[str, ...]:
    return (*_PYTHON, "stormkeeper", command, "--config", str(site.conf_file), *options)
