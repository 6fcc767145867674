"""Names of blobs: which are valid, and which belong to a topology."""

from typing import Final

from stormkeeper.errors import InvalidBlobKeyError
from stormkeeper.names import blob_key_fault

#: Of a topology's code: package, Storm's topology record, conf.
PARTS: Final = ("stormjar.jar", "stormcode.ser", "stormconf.ser")


def check(key: str) -> str:
    """Return `key` if it can name a file and a znode; raises `InvalidBlobKeyError`."""
    if fault := blob_key_fault(key):
        raise InvalidBlobKeyError(fault)
    return key


def is_key(key: str) -> bool:
    return not blob_key_fault(key)


def of_topology(topology_id: str) -> tuple[str, ...]:
    """Return the keys of a topology's code, in the order of `PARTS`."""
    return tuple(f"{topology_id}-{part}" for part in PARTS)


def topology_of(key: str) -> str | None:
    """Return the id of the topology whose code has this key, None for another blob."""
    topology_id, _ = split(key)
    return topology_id


def split(key: str) -> tuple[str | None, str]:
    """Return topology id and part of a key, or None and the key for another blob."""
    for part in PARTS:
        topology_id = key.removesuffix(f"-{part}")
        if topology_id and topology_id != key:
            return topology_id, part
    return None, key
