"""Which requests only our own servers understand, and how a server tells that it is one.

A message type that it does not know ends a Java Pacemaker (the whole daemon), so such a request
is sent only on a connection whose server has told that it has the extension: it answers
GET_PULSE of `RESERVED_PATH` with a ``ServerInfo``, of which field 4 lists the names. A Java
Pacemaker stores nothing there, and answers without details. The names:

- ``changes``: what changed at and below a path since a revision, with a tombstone for each path
  that was deleted or expired; since revision 0, all that is held. A reader whose revision is older
  than the oldest tombstone, or another instance's, is told to begin anew.
- ``sizes``: the same without the values. Who is alive is told by ages.
- ``held``: the pulse or the tombstone of exactly one path, with its age. By it a reader of several
  servers sees that a copy was deleted elsewhere.
- ``deleted``: the names directly below a path at or below which there are tombstones. Only such a
  name is in doubt if another server lists it.
"""

from typing import Final

from stormkeeper.pacemaker.wire.binary import LIST, STOP, STRING, BinaryReader

#: Told by a server that leaves the values out of changes where they are not wanted.
SIZES: Final = "sizes"

#: Not ``.``, which stands for itself too, nor ``]`` and ``}``, which alone mean nothing.
_SPECIAL: Final = frozenset("\\^$|?*+()[{")


def listing_ends_java(path: str) -> bool:
    """Whether a Java Pacemaker may end at GET_ALL_NODES_FOR_PATH of `path`.

    It takes the path for a regular expression, and ends at one that is none. What is certain to be
    one, and to stand for itself, has none of the characters with which that can go wrong: names of
    hosts and of nearly all topologies are such.
    """
    return not _SPECIAL.isdisjoint(path)


def extensions_told(details: bytes | None) -> frozenset[str]:
    """Read the names of a server's extensions out of its ``ServerInfo``.

    Only field 4 is read, by hand, so that a client that wants nothing but this need not load a
    Thrift library.

    Parameters
    ----------
    details
        The details of the pulse at `RESERVED_PATH`; None, as a Java Pacemaker answers, means none.

    Raises
    ------
    RemoteProtocolError
        If the bytes are not a Thrift struct.
    """
    names: set[str] = set()
    if details is None:
        return frozenset()
    reader = BinaryReader(details)
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            return frozenset(names)
        if field_id == 4 and kind == LIST:
            element, count = reader.sequence()
            for _ in range(count):
                if element == STRING:
                    names.add(reader.text("name of an extension"))
                else:
                    reader.skip(element)
        else:
            reader.skip(kind)
