"""The truth: what a simulation did, as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stormkeeper.errors import SimulationError
from stormkeeper.simulation.cluster import Topology


class Truth:
    """A file of events, one a line; without a path, nothing is kept.

    Parameters
    ----------
    path
        Where; an older file is replaced.

    Raises
    ------
    SimulationError
        If the file cannot be made.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        #: Why it could not be written any more.
        self.fault: SimulationError | None = None
        try:
            self._file = None if path is None else path.open("w", encoding="utf-8")
        except OSError as error:
            raise self._fault(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                if exc is None:
                    raise self._fault(error) from error

    @property
    def is_kept(self) -> bool:
        """Whether anybody will read it."""
        return self._file is not None

    def tell(self, event: dict[str, Any]) -> None:
        """Write an event. It raises nothing: `check` does, where somebody can act on it."""
        if self._file is not None and self.fault is None:
            try:
                self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
            except OSError as error:
                self.fault = self._fault(error)

    def check(self) -> None:
        """Let others read what was told so far.

        Raises
        ------
        SimulationError
            If not all of it could be written.
        """
        if self._file is not None and self.fault is None:
            try:
                self._file.flush()
            except OSError as error:
                self.fault = self._fault(error)
        if self.fault is not None:
            raise self.fault

    def _fault(self, error: OSError) -> SimulationError:
        return SimulationError(
            f"cannot write the truth to {self._path}: {error.strerror}; name another file with"
            " --truth"
        )


def of_topologies(topologies: list[Topology], at: float) -> Iterator[dict[str, Any]]:
    """Yield the events that say what each topology consists of."""
    for topology in topologies:
        yield {
            "event": "topology",
            "at": at,
            "storm_id": topology.storm_id,
            "topology": topology.name,
            "workers": len(topology.slots),
            "components": [
                {
                    "component": component.id,
                    "kind": component.kind,
                    "task_start": component.tasks[0],
                    "task_end": component.tasks[-1],
                }
                for component in topology.components
            ],
        }
