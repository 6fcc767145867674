"""Names of blobs: which are allowed, and which blobs belong to a topology."""

from typing import Final

from stormkeeper.errors import InvalidBlobKeyError
from stormkeeper.names import blob_key_fault

#: What a topology's code is in: its package, its description, and its configuration.
PARTS: Final = ("stormjar.jar", "stormcode.ser", "stormconf.ser")


def check(key: str) -> str:
    """Return `key` if a blob can have it.

    It is then the name of one file, and of one node in ZooKeeper.

    Raises
    ------
    InvalidBlobKeyError
        It cannot: the message says why.
    """
    if fault := blob_key_fault(key):
        raise InvalidBlobKeyError(fault)
    return key


def is_key(key: str) -> bool:
    """Return whether a blob can have that key."""
    try:
        check(key)
    except InvalidBlobKeyError:
        return False
    return True


def of_topology(topology_id: str) -> tuple[str, ...]:
    """Return the keys of the blobs that a topology's code is in, in the order of `PARTS`."""
    return tuple(f"{topology_id}-{part}" for part in PARTS)


def topology_of(key: str) -> str | None:
    """Return the id of the topology whose code `key` is a part of, None where it is another blob.

    Examples
    --------
    >>> topology_of("wc-1-1700000000-stormjar.jar")
    'wc-1-1700000000'
    """
    topology_id, _ = split(key)
    return topology_id


def split(key: str) -> tuple[str | None, str]:
    """Return the id of a topology and the part of its code that a key names.

    Of another blob, they are None and the key.
    """
    for part in PARTS:
        topology_id = key.removesuffix(f"-{part}")
        if topology_id and topology_id != key:
            return topology_id, part
    return None, key
