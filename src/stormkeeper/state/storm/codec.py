"""Records of the cluster's state to and from bytes, with the epoch of the leader that writes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, TypeVar

from thriftpy2.thrift import TPayload

from stormkeeper.conf import Conf
from stormkeeper.errors import SerializationError
from stormkeeper.thrift.serialization import (
    Compression,
    Release,
    compression_for,
    deserialize,
    release_for,
    serialize,
)

Record = TypeVar("Record", bound=TPayload)


class Codec:
    """How records are written; every form is read.

    Parameters
    ----------
    compression : Compression, optional
        Storm 2's default, gzip, if left out.
    release : Release, optional
        Which Storm is to read what is written; by `release_for` if left out.
    """

    def __init__(
        self, compression: Compression = Compression.GZIP, release: Release | None = None
    ) -> None:
        self._compression = compression
        #: Which Storm is to read what is written.
        self.release = release or release_for(compression)
        #: What the directories whose records are remembered had when they were last read.
        self._listed: dict[str, Mapping[str, _Read]] = {}

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        """Return the codec that the configuration names.

        Raises
        ------
        ConfigError
            ``storm.meta.serialization.delegate`` is none that is known.
        """
        release = conf["storm.meta.serialization.release"]
        return cls(
            compression_for(conf["storm.meta.serialization.delegate"]),
            None if release is None else Release(release),
        )

    def read(self, cls: type[Record], data: bytes) -> Record:
        """Return the record of class `cls` that `data` is.

        Raises
        ------
        SerializationError
            It is none.
        """
        return deserialize(cls, data)

    def read_all(
        self, cls: type[Record], directory: str, values: Mapping[str, bytes]
    ) -> tuple[dict[str, Record], dict[str, SerializationError]]:
        """Return the records that `values` are, and what is wrong with those that are none.

        The bytes of a large cluster's records hardly change between two reads, and to decode them
        takes most of a read's time. So a record whose bytes are those of the last time is not
        decoded again: the same object is returned. Safe for many threads.

        Parameters
        ----------
        cls
            The records' class: one for each directory.
        directory
            Where they are. All that it had the last time is remembered, until it is read again.
        values
            All that is there, by name.
        """
        before, now = self._listed.get(directory, {}), dict[str, _Read]()
        failed = {}
        for name, data in values.items():
            known = before.get(name)
            if known is None or known.data != data:
                try:
                    known = _Read(data, self.read(cls, data))
                except SerializationError as error:
                    failed[name] = error
                    continue
            now[name] = known
        self._listed[directory] = now
        return {name: each.record for name, each in now.items()}, failed

    def write(self, record: TPayload) -> bytes:
        """Return a record's bytes.

        Raises
        ------
        SerializationError
            The record does not fit its schema.
        """
        return serialize(record, self._compression, release=self.release)


class _Read(NamedTuple):
    data: bytes
    record: Any


def checked(cls: type[Record], record: Record) -> Record:
    """Return `record` if it is of class `cls`: no other belongs where it is to be written.

    Raises
    ------
    TypeError
        It is not.
    """
    if type(record) is not cls:
        raise TypeError(f"expected a record of class {cls.__name__}, not {type(record).__name__}")
    return record


def stamped(record: Record, epoch: int) -> Record:
    """Return a copy of `record` that says which leader wrote it; the record itself stays.

    Only the copy's own fields are new: what they hold is shared with the record.

    Parameters
    ----------
    record : object
        A record of a class that has the field ``leader_epoch``.
    epoch : int
        The leader's: the creation zxid of its lock.
    """
    ours = copy.copy(record)
    ours.leader_epoch = epoch  # type: ignore[attr-defined]
    return ours
