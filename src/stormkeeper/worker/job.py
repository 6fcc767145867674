"""What a worker is to run, and as whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stormkeeper.errors import WorkerError
from stormkeeper.topology.claims import Claim
from stormkeeper.worker.unpacked import Unpacked


@dataclass(frozen=True, kw_only=True)
class Job:
    """A worker's job.

    Parameters
    ----------
    script
        Defines a topology, or is any PySpark streaming script. Relative to the package, if there
        is one.
    storm_id, node, port
        Whose heartbeats these are: the topology's id, the supervisor's, and the slot's port.
    arguments
        What the script finds in ``sys.argv``; those of the package where there are none.
    py_files
        Modules and archives of modules that it can import, beside those of the package.
    queries
        Ids of the topology's queries to run; all where none is named.
    claims
        By the query's id, the claim with which it is run.
    package
        What a supervisor has it run. Then it runs those queries alone that have a claim, follows
        whether its topology is active, and reports to the cluster's state.
    alive
        A file that is touched as long as the worker gets on.
    """

    script: Path
    storm_id: str
    node: str
    port: int
    arguments: Sequence[str] = ()
    py_files: Sequence[Path] = ()
    queries: Sequence[str] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)
    package: Unpacked | None = None
    alive: Path | None = None

    @property
    def script_file(self) -> Path:
        """Where the script is.

        Raises
        ------
        WorkerError
            It is not in the code of the package.
        """
        if self.package is None:
            return self.script
        file = self.package.folder / self.script
        if not file.is_relative_to(self.package.code):
            raise WorkerError(f"the script {self.script} is not in {self.package.code}")
        return file

    @property
    def root(self) -> Path | None:
        """What is first in ``sys.path``; None: the folder of the script."""
        return None if self.package is None else self.package.code

    @property
    def all_arguments(self) -> Sequence[str]:
        """What the script finds in ``sys.argv``."""
        return self.arguments or (() if self.package is None else self.package.manifest.arguments)

    @property
    def all_py_files(self) -> list[Path]:
        """All modules and archives of modules that come along."""
        return [*(self.package.py_files if self.package is not None else ()), *self.py_files]

    @property
    def chosen(self) -> list[str]:
        """Ids of the topology's queries that are run; all where there is none."""
        return [*(self.queries or (self.claims if self.package is not None else ()))]

    @property
    def script_claim(self) -> Claim | None:
        """The claim of a plain script, which is one query to the cluster."""
        if self.package is None or not self.package.is_script:
            return None
        return next(iter(self.claims.values()), None)

    @property
    def script_id(self) -> str | None:
        """The id that a plain script has in the cluster; None where it is no cluster's."""
        if self.package is None or not self.package.is_script:
            return None
        return next(iter(self.claims), self.package.queries[0])

    @property
    def has_session_first(self) -> bool:
        """Whether its Spark session has to be there before the script begins."""
        return self.package is not None and self.package.description.session_first

    @property
    def reported(self) -> list[str]:
        """The components that are told of an error that is of no single one: all sinks."""
        return self.chosen or [*(self.package.queries if self.package is not None else ())]
