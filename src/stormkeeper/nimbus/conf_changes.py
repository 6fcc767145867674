"""New values in topologies' confs, which rebalances bring.

A rebalance says them first, in the topology's base. Then they are saved, and the base says so; only
after that is the rebalance carried out. So one whose Nimbus is lost in between is finished by
whoever leads next. What has these values already stays as it is when they are saved again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from stormkeeper.blobs import keys
from stormkeeper.errors import CodeError, NoNodeError, SerializationError
from stormkeeper.nimbus import lifecycle
from stormkeeper.nimbus.submitted import decode_conf, encode_conf
from stormkeeper.state.storm.cluster import LeaderClusterState
from stormkeeper.thrift.records import StormBase

log = logging.getLogger(__name__)

#: The part of a topology's code that its conf is.
_CONF: Final = keys.PARTS[2]


class Code(Protocol):
    """Where the code of topologies is; a `stormkeeper.blobs.distributor.CodeDistributor`."""

    def change(
        self,
        topology_id: str,
        part: str,
        change: Callable[[bytes], bytes],
        *,
        is_repeated: bool = False,
    ) -> None:
        """Have a part of a topology's code be what `change` makes of its bytes."""
        ...


class ConfChanges:
    """The changes of one Nimbus. Safe for many threads.

    Parameters
    ----------
    code
        Where the confs are.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self._lock = threading.Lock()
        self._under_way: set[str] = set()

    @contextmanager
    def under_way(self, storm_id: str) -> Iterator[None]:
        """Have a topology's change be nobody else's to finish meanwhile."""
        with self._lock:
            self._under_way.add(storm_id)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(storm_id)

    def save(
        self, storm_id: str, overrides: Mapping[str, Any], *, is_repeated: bool = False
    ) -> None:
        """Save a topology's conf with other values.

        Raises
        ------
        CodeError, StateError
            As `stormkeeper.blobs.distributor.CodeDistributor.change`.
        """

        def changed(data: bytes) -> bytes:
            saved = decode_conf(data)
            conf = {**saved, **overrides}
            return data if conf == saved else encode_conf(conf)

        self._code.change(storm_id, _CONF, changed, is_repeated=is_repeated)
        log.info("%s: its conf is changed in %s", storm_id, ", ".join(sorted(overrides)))

    def finish(self, leader: LeaderClusterState, bases: Mapping[str, StormBase]) -> bool:
        """Save what rebalances of Nimbuses that are gone have left unsaved.

        Returns
        -------
        bool
            Whether any of these bases is another one now.

        Raises
        ------
        StateError
            ZooKeeper was not reached, or this Nimbus leads no more.
        """
        has_changed = False
        for storm_id, base in bases.items():
            overrides = lifecycle.unsaved_conf(base)
            with self._lock:
                is_others = storm_id in self._under_way
            if overrides is None or is_others:
                continue
            try:
                self.save(storm_id, json.loads(overrides), is_repeated=True)
            except CodeError as error:
                log.warning("%s: its conf cannot be changed yet: %s", storm_id, error)
                continue
            except (SerializationError, ValueError) as error:
                log.warning("%s is rebalanced without a change of its conf: %s", storm_id, error)
            with suppress(NoNodeError):  # it is gone
                leader.change_storm(storm_id, lifecycle.conf_saved)
                has_changed = True
        return has_changed
