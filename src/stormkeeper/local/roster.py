"""The processes of a local cluster, described before any of them is started; pure.

`cluster` follows this description. It knows no process by name, except the worker and the pipeline,
of which it shows more than the others. A further process is a further row here.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path

from stormkeeper.conf import Address
from stormkeeper.daemon.lifecycle import DIE_WITH_PARENT
from stormkeeper.daemon.orphans import RUN_MARK
from stormkeeper.local import settings

#: Slot of the one worker.
NODE, PORT = "local", 6700

WORKER = "worker"
PIPELINE = "pipeline"

#: Without the current folder on its path, where a file may have the name of a library's module.
_PYTHON = (sys.executable, "-P", "-m")

_LISTENING = re.compile(r"^(?:zookeeper|pacemaker) listening on (\S+)$")
_BEATING = re.compile(r"^worker beating (\S+) (\S+) (\S+)$")
_WRITING = re.compile(r"^pipeline writing to (.+)$")


class Stage(IntEnum):
    """When a process is started: with all others of its stage, in the order of the stages."""

    #: What the others need. All of them are ready before the next stage.
    SERVERS = 1
    #: What runs the topology. All of them are ready before the run counts as started.
    WORKERS = 2
    #: What has a Spark of its own, which would slow the worker's start down. It is started once the
    #: worker has counted its first rows, and the run does not wait for it.
    ANALYSES = 3


class WhenEnded(Enum):
    """What follows when a process ends that nobody has asked to. Nothing is started again."""

    #: The others go on without it.
    GO_ON = "go on"
    #: If it fails, the run ends. If somebody has killed it, the run goes on and shows that.
    END_RUN = "end the run"


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
        How long to run once the worker beats; None until Ctrl-C or until the topology ends.
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
        What its processes carry in their environment.
    parent
        Process id of the one that starts them, with which they end.
    zookeeper, pacemakers
        Where the servers listen.
    """

    directory: Path
    mark: str
    parent: int
    zookeeper: Address
    pacemakers: tuple[Address, ...]

    @property
    def conf_file(self) -> Path:
        """The configuration that all processes read."""
        return self.directory / "cluster.yaml"

    @property
    def temporary(self) -> Path:
        """The folder for what Spark and the JVM put aside."""
        return self.directory / "tmp"

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
    when_ended
        What follows when it ends by itself.
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
    when_ended: WhenEnded
    address: str = ""


def roster(request: Request, site: Site, storm_id: str) -> tuple[PlannedProcess, ...]:
    """Return the processes of a cluster, in the order in which they are started and shown.

    The worker is stopped first, as its last heartbeat carries the final counts. What keeps these
    is stopped last.

    Parameters
    ----------
    request
        What to run.
    site
        Where.
    storm_id
        Id of the topology.
    """
    rows = [_server("zookeeper", site.zookeeper, _storm(site, "dev-zookeeper"), site, 4)]
    rows += [
        _server(
            f"pacemaker {n}",
            address,
            _storm(site, "pacemaker", "-c", f"pacemaker.port={address.port}"),
            site,
            3,
        )
        for n, address in enumerate(site.pacemakers, 1)
    ]
    rows.append(_worker(request, site, storm_id))
    if request.pipeline:
        rows.append(_pipeline(site))
    return tuple(rows)


def _server(
    name: str, address: Address, command: tuple[str, ...], site: Site, stop_order: int
) -> PlannedProcess:
    return PlannedProcess(
        name=name,
        command=command,
        environment=site.environment(),
        ready=_LISTENING,
        ready_note=f"{name} listens on {{}}",
        stage=Stage.SERVERS,
        stop_order=stop_order,
        when_ended=WhenEnded.GO_ON,
        address=str(address),
    )


def _worker(request: Request, site: Site, storm_id: str) -> PlannedProcess:
    command = [*_PYTHON, "stormkeeper.worker", str(request.topology)]
    command += ["--storm-id", storm_id, "--node", NODE, "--port", str(PORT)]
    command += ["--config", str(site.conf_file)]
    command += [f"--conf={override}" for override in settings.given(request.overrides)]
    if request.strict:
        command.append("--strict")
    for file in request.py_files:
        command += ["--py-files", str(file)]
    command += ["--", *request.arguments]
    return PlannedProcess(
        name=WORKER,
        command=tuple(command),
        environment=site.environment(),
        ready=_BEATING,
        ready_note="worker {} beats",
        stage=Stage.WORKERS,
        stop_order=1,
        when_ended=WhenEnded.END_RUN,
    )


def _pipeline(site: Site) -> PlannedProcess:
    return PlannedProcess(
        name=PIPELINE,
        command=_storm(site, "pipeline"),
        environment=site.environment(),
        ready=_WRITING,
        ready_note="pipeline writes its tables to {}",
        stage=Stage.ANALYSES,
        stop_order=2,
        when_ended=WhenEnded.END_RUN,
    )


def _storm(site: Site, command: str, *options: str) -> tuple[str, ...]:
    return (*_PYTHON, "stormkeeper", command, "--config", str(site.conf_file), *options)
