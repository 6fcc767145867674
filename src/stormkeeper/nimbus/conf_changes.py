"""Changes of topologies' confs by rebalances.

A rebalance first writes the new values into the topology's base. Then they are saved in the conf,
and the base records that; only then is the rebalance carried out. So the next leader can finish a
rebalance whose leader is lost in between. Saving the same values again changes nothing.
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

_CONF: Final = keys.PARTS[2]


class Code(Protocol):
    """The part of `stormkeeper.blobs.distributor.CodeDistributor` that is used here."""

    def change(
        self,
        topology_id: str,
        part: str,
        change: Callable[[bytes], bytes],
        *,
        is_repeated: bool = False,
    ) -> None:
        """Replace a part of a topology's code by `change` of its bytes."""
        ...


class ConfChanges:
    """The changes that one Nimbus makes. Safe for many threads."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._lock = threading.Lock()
        self._under_way: set[str] = set()

    @contextmanager
    def under_way(self, storm_id: str) -> Iterator[None]:
        """Reserve a topology's change: `finish` leaves it alone during the block."""
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
        """Save new values in a topology's conf.

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
        """Save what earlier leaders' rebalances left unsaved; returns whether a base changed.

        Raises
        ------
        StateError
            ZooKeeper was not reached, or this Nimbus no longer leads.
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
