"""A whole cluster of real daemons on this machine, each of which can be killed."""

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import yaml

from stormkeeper.client.nimbus_connection import connect
from stormkeeper.conf import load
from stormkeeper.local import reservations
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from support.command import STORM
from support.daemon import DaemonProcess
from support.pacemaker import PacemakerProcess

#: How long a command may take that waits for its effect: Spark's drivers start one after another.
COMMAND_SECS = 240.0


class RealCluster:
    """ZooKeeper, Pacemakers, Nimbuses and supervisors. A context manager, which starts them.

    Parameters
    ----------
    folder
        For all that they write.
    pacemakers, nimbuses, supervisors
        How many.
    slots
        How many each supervisor has.
    conf
        Further values of the ``storm.yaml`` that all of them read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        pacemakers: int = 1,
        nimbuses: int = 2,
        supervisors: int = 2,
        slots: int = 2,
        conf: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._conf = conf or {}
        self._number = pacemakers
        #: The addresses of the Nimbuses.
        self.seeds = [f"127.0.0.1:{reservations.reserve()}" for _ in range(nimbuses)]
        #: The ports of each supervisor.
        self.slots = [[reservations.reserve() for _ in range(slots)] for _ in range(supervisors)]

    def __enter__(self) -> Self:
        with self._stack:
            self.zookeeper = self._stack.enter_context(DevZooKeeper(self.folder / "zookeeper"))
            self.pacemakers = [
                self._stack.enter_context(PacemakerProcess()) for _ in range(self._number)
            ]
            self._write_conf()
            self.nimbuses = [self._nimbus(number) for number in range(len(self.seeds))]
            self.supervisors = [self._supervisor(number) for number in range(len(self.slots))]
            for daemon in (*self.nimbuses, *self.supervisors):
                self._stack.enter_context(daemon)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # The workers outlive their supervisors.
            for number, supervisor in enumerate(self.supervisors):
                supervisor.kill()
                self.kill_workers(number)
        finally:
            self._stack.close()

    def storm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of an operator of this cluster."""
        ran = subprocess.run(
            [STORM, *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECS,
            check=False,
        )
        assert not check or ran.returncode == 0, f"{arguments}: {ran.stdout}\n{ran.stderr}"
        return ran

    def told(self, *arguments: str) -> Any:
        """Return what a command says with ``--json``."""
        return json.loads(self.storm(*arguments, "--json").stdout)

    def add_nimbus(self) -> None:
        """Start one more Nimbus, of which the daemons that run do not know."""
        self.seeds.append(f"127.0.0.1:{reservations.reserve()}")
        self._write_conf()
        self.nimbuses.append(self._stack.enter_context(self._nimbus(len(self.nimbuses))))

    def disk_of(self, daemon: DaemonProcess) -> Path:
        """Return the ``storm.local.dir`` of a Nimbus or a supervisor."""
        for kind, daemons in (("nimbus", self.nimbuses), ("supervisor", self.supervisors)):
            if daemon in daemons:
                return self.folder / f"{kind}-{daemons.index(daemon)}"
        raise ValueError("no daemon of this cluster's")

    def kill_workers(self, supervisor: int) -> None:
        """End the workers of one supervisor, by its number."""
        own = f"storm.local.dir={self.folder / f'supervisor-{supervisor}'}"
        self.storm("kill_workers", "-c", own)

    def leader(self) -> int:
        """Return the number of the Nimbus that leads, when one does."""
        conf = load(files=[self.folder / "storm.yaml"])
        with connect(conf) as connection:
            leader = connection.nimbus.getLeader()
        return self.seeds.index(f"{leader.host}:{leader.port}")

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its commands."""
        return {**os.environ, "STORM_CONF_DIR": str(self.folder)}

    def _write_conf(self) -> None:
        conf = {
            "storm.zookeeper.servers": [self.zookeeper.host],
            "storm.zookeeper.port": self.zookeeper.port,
            "storm.cluster.state.store": "org.apache.storm.cluster.PaceMakerStateStorageFactory",
            "pacemaker.servers": [each.address for each in self.pacemakers],
            "nimbus.seeds": self.seeds,
            # A Nimbus that is killed leads for so long.
            "storm.zookeeper.session.timeout": 8_000,
            "storm.local.hostname": "127.0.0.1",
            "topology.checkpoint.dir": str(self.folder / "checkpoints"),
            "topology.checkpoint.shared": True,
            **self._conf,
        }
        (self.folder / "storm.yaml").write_text(yaml.safe_dump(conf))

    def _nimbus(self, number: int) -> DaemonProcess:
        host, _, port = self.seeds[number].rpartition(":")
        conf = {
            "storm.local.dir": str(self.folder / f"nimbus-{number}"),
            "nimbus.bind.host": host,
            "nimbus.thrift.port": int(port),
        }
        return DaemonProcess("nimbus", f"nimbus listening on {host}:", conf, environ=self.environ)

    def _supervisor(self, number: int) -> DaemonProcess:
        conf = {
            "storm.local.dir": str(self.folder / f"supervisor-{number}"),
            "supervisor.slots.ports": self.slots[number],
            "supervisor.bind.host": "127.0.0.1",
            "logviewer.port": 0,
        }
        return DaemonProcess("supervisor", "supervisor ready ", conf, environ=self.environ)
