"""Rules for the names that users choose, and the display of foreign text. Pure.

Names are encodable text without invisible or terminal-controlling characters; each kind has further
rules. A function ``…_fault`` returns the fault of a name, or None.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

#: Of a file in a package, and between slashes. Linux allows paths of 4,096 bytes, with a
#: supervisor's folder before the name, and parts of 255.
MAX_FILE_BYTES: Final = 1024
MAX_PART_BYTES: Final = 255
MAX_PARTS: Final = 64

#: A file's name may have 255 bytes, and a store adds a suffix.
MAX_KEY_BYTES: Final = 240

#: Longest suffix of a topology's name in a blob's key.
_LONGEST_END: Final = "-2147483647-2147483647-stormjar.jar"

#: In bytes (RFC 1035, 2.3.4).
_MAX_HOST_BYTES: Final = 253

#: Control characters, separators of lines and paragraphs, marks that reverse text, and shapeless
#: characters, except joiners of Indic and Persian letters.
_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)

#: Most paths, which have no fault; the others are looked at more closely.
_PLAIN_PATH: Final = re.compile(r"(?:/[\w-][\w.-]*)+", re.ASCII)

#: Characters that ZooKeeper's PathUtils refuses: control, private, and surrogate pairs in Java,
#: such as emoji.
_NOT_IN_ZOOKEEPER: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"
)

#: Storm's rules for topologies and blobs.
_TOPOLOGY: Final = re.compile(r"[^/.:\\]+")
_BLOB_KEY: Final = re.compile(r"[\w \t._-]+")

#: A topology's id: name, sequence number and time of submission.
_STORM_ID: Final = re.compile(r"(.+)-\d+-\d+")

#: A label of a host name: letters of any script, digits, - and _ (as in Docker's names).
_LABEL: Final = re.compile(r"(?!-)[\w-]{1,63}(?<!-)")


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with unprintable characters escaped, except `keep`.

    The result cannot control a terminal, or pass for a further line of a log.

    Examples
    --------
    >>> printable("red\x1b[31m")
    'red\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def name_fault(name: str) -> str | None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return f"the name {name!r} is no UTF-8"
    if hidden := _HIDDEN.search(name):
        return f"the name {name!r} has the character {hidden[0]!a}"
    return None


def topology_fault(name: str) -> str | None:
    """Return the fault of a topology's name, in Storm's words if Storm refuses."""
    begin = f"Topology name '{printable(name)}' is not valid"
    if not _TOPOLOGY.fullmatch(name):
        return f"{begin}. It can't be null and it must match ^[^/.:\\\\]+$"
    if name != name.strip():
        return f"{begin}: it begins or ends with a blank"
    if fault := name_fault(name) or blob_key_fault(name + _LONGEST_END):
        return f"{begin}, as its code is kept under it: {fault}"
    return None


def topology_name(storm_id: str) -> str:
    """Return the name in a topology's id, or the id itself if not of Storm's form.

    >>> topology_name("word-count-1-1700000000")
    'word-count'
    """
    match = _STORM_ID.fullmatch(storm_id)
    return match[1] if match else storm_id


def blob_key_fault(key: str) -> str | None:
    """Return the fault of a blob's key, which names a file and a ZooKeeper node."""
    if not isinstance(key, str) or not _BLOB_KEY.fullmatch(key) or not key.strip():
        return f"{key!r} is no key of a blob: use letters, digits, spaces, and any of . _ -"
    if len(key.encode()) > MAX_KEY_BYTES:
        return (
            f"{key[:40]!r}… is too long for the key of a blob: {len(key.encode())} bytes, and"
            f" {MAX_KEY_BYTES} are allowed"
        )
    fault = path_fault(f"/{key}")
    return f"{key!r} is no key of a blob: {fault}" if fault else None


def path_fault(path: str) -> str | None:
    """Return the fault of a path by the rules of ZooKeeper."""
    if path == "/" or _PLAIN_PATH.fullmatch(path):
        return None
    parts = path[1:].split("/")
    fault = None
    if not path.startswith("/"):
        fault = "must start with /"
    elif path.endswith("/"):
        fault = "must not end with /"
    elif "" in parts:
        fault = "has an empty name in it (//)"
    elif "." in parts or ".." in parts:
        fault = "has a relative name in it (. or ..)"
    elif bad := _NOT_IN_ZOOKEEPER.search(path):
        fault = f"has the forbidden character {bad[0]!r} in it"
    return f"the path {path!r} {fault}" if fault else None


def root_fault(path: str) -> str | None:
    """Return the fault of ``storm.zookeeper.root``, which people type and read."""
    if any(char.isspace() for char in path):
        return f"the path {path!r} has a blank in it"
    return path_fault(path) or name_fault(path)


def host_fault(host: str) -> str | None:
    """Return the fault of a host name, or an IP address without brackets."""
    if is_ipv6(host):
        return None
    labels = host.removesuffix(".").split(".")
    if len(host.encode(errors="replace")) > _MAX_HOST_BYTES or not all(
        map(_LABEL.fullmatch, labels)
    ):
        return f"{host!r} is no host name"
    # Resolvers read 10.1 as 10.0.0.1, and ask a name server for 10.0.0.256.
    if len(labels) > 1 and all(label.isdecimal() for label in labels):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return f"{host!r} is no IPv4 address"
    return None


def host_port(host: str, port: int | str) -> str:
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_ipv6(text: str) -> bool:
    """Whether a text is an IPv6 address without brackets."""
    with suppress(ValueError):
        return ipaddress.ip_address(text).version == 6
    return False


def file_fault(name: str) -> str | None:
    """Return the fault of the name of a file in a package.

    A name is a relative path with slashes to a file inside the package's folder.

    Examples
    --------
    >>> file_fault("code/../../etc/passwd")
    "the name 'code/../../etc/passwd' has the part '..'"
    """
    return name_fault(name) or next(_file_faults(name), None)


def _file_faults(name: str) -> Iterator[str]:
    data = name.encode()
    if len(data) > MAX_FILE_BYTES:
        yield f"the name {name[:80]!r}… has {len(data):,} bytes, and may have {MAX_FILE_BYTES:,}"
    if name.startswith("/"):
        yield f"the name {name!r} is absolute"
    if "\\" in name:  # a slash on Windows
        yield f"the name {name!r} has the character '\\\\'"
    parts = name.split("/")
    if len(parts) > MAX_PARTS:
        yield f"the name {name!r} has {len(parts)} parts, and may have {MAX_PARTS}"
    for part in parts:
        if part in {"", ".", ".."}:
            yield f"the name {name!r} has the part {part!r}"
        if len(part.encode()) > MAX_PART_BYTES:
            yield f"the name {name!r} has a part of more than {MAX_PART_BYTES} bytes"


def files_fault(files: Collection[str]) -> str | None:
    """Return the fault of a package's file names, alone or together."""
    return next(filter(None, map(file_fault, files)), None) or clash(files)


def clash(files: Iterable[str]) -> str | None:
    """Return the fault of a name of two files, or of a file and a folder."""
    names = Counter(list(files))
    for name, count in names.items():
        if count > 1:
            return f"two files named {name!r} would be the same file"
        folder = name.rpartition("/")[0]
        while folder:
            if folder in names:
                return f"{folder!r} would be both a file and the folder of {name!r}"
            folder = folder.rpartition("/")[0]
    return None
