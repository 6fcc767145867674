"""The processes of a local cluster, described before any of them is started; pure.

`cluster` follows this description. It knows no process by name, except the pipeline, of which it
shows more than of the others. A further process is a further row here. The supervisors start the
workers.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from stormkeeper.conf import Conf
from stormkeeper.daemon.children import RUN_MARK
from stormkeeper.daemon.lifecycle import DIE_WITH_PARENT
from stormkeeper.local.settings import Places

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
class Request:
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
class Site:
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
    places: Places
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


def roster(conf: Conf, site: Site, *, pipeline: bool) -> tuple[PlannedProcess, ...]:
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
    site: Site, name: str, command: str, address: str, *options: str, stop_order: int
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
    site: Site, name: str, slots: Sequence[int], *, has_capacity: bool
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


def _pipeline(site: Site) -> PlannedProcess:
    return PlannedProcess(
        name=PIPELINE,
        command=_storm(site, "pipeline"),
        environment=site.environment(),
        ready=_WRITING,
        ready_note="pipeline writes its tables to {}",
        stage=Stage.ANALYSES,
        stop_order=1,
    )


def _of_its_own(site: Site, name: str) -> tuple[str, ...]:
    return ("-c", f"storm.local.dir={json.dumps(str(site.folder(name)))}")


def _storm(site: Site, command: str, *options: str) -> tuple[str, ...]:
    return (*_PYTHON, "stormkeeper", command, "--config", str(site.conf_file), *options)
