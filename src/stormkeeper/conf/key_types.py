"""The kinds of value that a configuration key may have: whole numbers, times, texts, addresses.

Ranges are Java's where Storm's daemons read the same file; where Storm wants whole seconds,
fractions are taken too.
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from stormkeeper.conf.address import MAX_PORT, Address, check_host
from stormkeeper.errors import ConfigError
from stormkeeper.names import root_fault

#: Storm reads its numbers as Java ints; a larger one in a shared file would stop Storm's daemons.
JAVA_INT_MAX = 2**31 - 1

#: A Java class with its package, whose names may be in any script.
_CLASS: Final = re.compile(r"[^\W\d][\w$]*(?:\.[^\W\d][\w$]*)+")

#: How often each unit of a size is 1024 bytes multiplied with itself; written as JVMs, systemd
#: and people do. Not ``MB``, which is a thousand to some.
_UNITS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])(?:iB?)?", re.IGNORECASE)

#: Text that is not empty.
Text = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Key:
    """A configuration key that is read.

    Parameters
    ----------
    name
        The key.
    type
        What its value is converted to by msgspec, strictly.
    allowed
        `type` in words, for messages and documentation.
    meaning
        What it does, with its unit.
    is_list
        Whether a single value stands for a list of one.
    read
        Turns a text into what `type` takes, where people may write one; raises `ConfigError`.
    check
        Raises `ConfigError` for what a type cannot express.
    unset
        Values with which Storm takes the key for one that is not set, as the default then holds.
    is_class
        Whether it names a Java class. One that is not among `type` is kept, as Storm may have it
        where nothing here is asked for it; whoever needs the class refuses it.
    """

    name: str
    type: Any
    allowed: str
    meaning: str
    is_list: bool = False
    read: Callable[[str], object] | None = None
    check: Callable[[Any], object] | None = None
    unset: tuple[Any, ...] = ()
    is_class: bool = False

    def is_unset(self, value: Any) -> bool:
        """Return whether `value` counts as not set."""
        return any(type(value) is type(none) and value == none for none in self.unset)

    def is_elsewhere(self, value: Any) -> bool:
        """Return whether `value` names a Java class, which Storm may have although we do not."""
        return self.is_class and isinstance(value, str) and _CLASS.fullmatch(value) is not None

    def convert(self, value: Any) -> Any:
        """Return `value` as this key's type.

        Raises
        ------
        ConfigError
            Without the key and the value, which the caller adds: it knows what may be shown.
        """
        if self.is_list and value is not None and not isinstance(value, list | tuple | dict):
            value = [value]
        try:
            if self.read is not None and isinstance(value, str):
                value = self.read(value)
            converted = msgspec.convert(value, self.type)
        except (msgspec.ValidationError, ConfigError) as error:
            raise ConfigError(f"expected {self.allowed}") from error
        if self.check is not None and converted is not None:
            try:
                self.check(converted)
            except ConfigError as error:
                raise ConfigError(f"expected {self.allowed} ({error})") from error
        return converted


def whole(name: str, meaning: str, *, least: int, most: int = JAVA_INT_MAX) -> Key:
    """Return a key whose value is a whole number, both bounds included."""
    limit = f"from {least} to {most}" if most < JAVA_INT_MAX else f"of {least} or more"
    return Key(name, Annotated[int, Meta(ge=least, le=most)], f"a whole number {limit}", meaning)


def whole_or_null(name: str, meaning: str, *, least: int) -> Key:
    """Return a key like `whole` whose value may be null."""
    key = whole(name, meaning, least=least)
    return Key(name, key.type | None, f"{key.allowed}, or null", meaning)


def port(name: str, meaning: str) -> Key:
    """Return a key whose value is a TCP port, or 0."""
    return whole(name, meaning, least=0, most=MAX_PORT)


def seconds(name: str, meaning: str) -> Key:
    """Return a key whose value is a time of more than 0 seconds, fractions allowed."""
    kind = (
        Annotated[int, Meta(gt=0, le=JAVA_INT_MAX)] | Annotated[float, Meta(gt=0, le=JAVA_INT_MAX)]
    )
    return Key(name, kind, "a number of seconds above 0", meaning)


def seconds_from(name: str, meaning: str, *, least: int) -> Key:
    """Return a key whose value is a time of `least` seconds or more, fractions allowed."""
    kind = (
        Annotated[int, Meta(ge=least, le=JAVA_INT_MAX)]
        | Annotated[float, Meta(ge=least, le=JAVA_INT_MAX)]
    )
    return Key(name, kind, f"a number of seconds of {least} or more", meaning)


def seconds_or_null(name: str, meaning: str) -> Key:
    """Return a key like `seconds` whose value may be null."""
    key = seconds(name, meaning)
    return Key(name, key.type | None, f"{key.allowed}, or null", meaning)


def bytes_or_null(name: str, meaning: str) -> Key:
    """Return a key whose value is a size, in bytes or with a unit (see `size_of`), or null."""
    # No Java reads these; a store may well be larger than its ints reach.
    kind = Annotated[int, Meta(ge=0, le=2**62)] | None
    allowed = "a number of bytes, such as 536870912, 512m, 512 MiB or 1.5 GiB, or null"
    return Key(name, kind, allowed, meaning, read=size_of)


def size_of(written: str) -> int:
    """Return the bytes of a size such as ``512m``, ``512 MiB`` or ``1.5G``.

    Units are k, m, g and t, in either case, alone or with ``i`` or ``iB``: powers of 1024.

    Raises
    ------
    ConfigError
        It is no size.
    """
    found = _SIZE.fullmatch(written)
    if found is None:
        raise ConfigError(f"{written} is no size: write it as 512m, 512 MiB or 1.5 GiB")
    return int(float(found[1]) * 1024 ** _UNITS[found[2].lower()])


def port_or_null(name: str, meaning: str) -> Key:
    """Return a key whose value is a TCP port, 0, or null."""
    return Key(name, port(name, "").type | None, f"a port from 0 to {MAX_PORT}, or null", meaning)


def switch(name: str, meaning: str) -> Key:
    """Return a key whose value is true or false."""
    return Key(name, bool, "true or false", meaning)


def text(name: str, meaning: str) -> Key:
    """Return a key whose value is text that is not empty."""
    return Key(name, Text, "text that is not empty", meaning)


def text_or_null(name: str, meaning: str) -> Key:
    """Return a key whose value is text that is not empty, or null."""
    return Key(name, Text | None, "text that is not empty, or null", meaning)


def storms_text_or_null(name: str, meaning: str) -> Key:
    """Return a key like `text_or_null`, for which an empty text means null, as in Storm."""
    key = text_or_null(name, meaning)
    return dataclasses.replace(key, unset=("",))


def class_of(name: str, kind: Any, meaning: str) -> Key:
    """Return a key like `one_of` for a Java class; Storm may have other classes."""
    return dataclasses.replace(one_of(name, kind, meaning), is_class=True)


def one_of(name: str, kind: Any, meaning: str) -> Key:
    """Return a key whose value is one of those of `kind`, a ``Literal``."""
    return Key(name, kind, "one of " + ", ".join(kind.__args__), meaning)


def some_of(name: str, kind: Any, meaning: str) -> Key:
    """Return a key whose value is a list of some of those of `kind`, a ``Literal``."""
    return Key(name, list[kind], "a list of " + ", ".join(kind.__args__), meaning, is_list=True)


def amount_or_null(name: str, meaning: str) -> Key:
    """Return a key whose value is a number above 0, fractions allowed, or null."""
    kind = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0, le=2.0**62)] | None
    return Key(name, kind, "a number above 0, or null", meaning)


def host(name: str, meaning: str) -> Key:
    """Return a key whose value is a host name or an address without a port."""
    return Key(name, Text, "a host name or an IP address", meaning, check=check_host)


def host_or_null(name: str, meaning: str, *, unset: tuple[Any, ...] = ()) -> Key:
    """Return a key like `host` whose value may be null."""
    allowed = "a host name or an IP address, or null"
    return Key(name, Text | None, allowed, meaning, check=check_host, unset=unset)


def one_server_or_null(name: str, meaning: str) -> Key:
    """Return a key whose value is one address, or null; as in Storm, an empty text is null."""
    allowed = "host or host:port, or null"
    return Key(name, Text | None, allowed, meaning, check=check_address, unset=("",))


def variables_or_null(name: str, meaning: str) -> Key:
    """Return a key whose value is a mapping of environment variables to texts, or null."""
    # A number or a switch in YAML is meant as it is written.
    kind = dict[Text, str | int | float | bool] | None
    allowed = "a mapping of names without = to texts without NUL, or null"
    return Key(name, kind, allowed, meaning, check=check_variables)


def servers(name: str, meaning: str, *, least: int = 0, unset: tuple[Any, ...] = ()) -> Key:
    """Return a key whose value is a list of addresses, of `least` or more; `unset` as of `Key`."""
    kind = Annotated[list[Text], Meta(min_length=least)]
    allowed = "a list of host or host:port" + (", not empty" if least else "")
    return Key(name, kind, allowed, meaning, is_list=True, check=check_addresses, unset=unset)


def texts(name: str, meaning: str) -> Key:
    """Return a key whose value is a list of texts; Storm takes null for one without any."""
    return Key(name, list[Text], "a list of texts", meaning, is_list=True, unset=(None,))


def check_address(value: str) -> None:
    """Raise `ConfigError` unless it is ``host`` or ``host:port``."""
    Address.parse(value, MAX_PORT)


def check_addresses(value: list[str]) -> None:
    """Raise `ConfigError` unless all are ``host`` or ``host:port``."""
    for entry in value:
        check_address(entry)


def check_root(value: str) -> None:
    """Raise `ConfigError` unless it is a path that ZooKeeper takes and that a person can read."""
    if fault := root_fault(value):
        raise ConfigError(fault)


def check_variables(value: dict[str, Any]) -> None:
    """Raise `ConfigError` if no process can have these environment variables."""
    if any("=" in name or "\0" in f"{name}{text}" for name, text in value.items()):
        raise ConfigError("no environment variable")


def check_distinct(value: list[int]) -> None:
    """Raise `ConfigError` if one is there twice."""
    if len(set(value)) < len(value):
        raise ConfigError("twice the same")


#: Goes to the JVM as it is, which knows fewer units than Spark, and without one counts bytes.
_HEAP: Final = "spark.driver.memory"
_HEAP_SIZE: Final = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)

#: Read by Spark; without a unit in MiB, or bytes, as each has it.
_SIZES: Final = frozenset(
    {
        "spark.driver.maxResultSize",
        "spark.driver.memoryOverhead",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.pyspark.memory",
        "spark.memory.offHeap.size",
        "spark.python.worker.memory",
    }
)
_SPARK_SIZE: Final = re.compile(r"\d+(?:b|[kmgtp]b?)?", re.IGNORECASE)


def check_spark_size(key: str, value: Any) -> None:
    """Check a value. Null is allowed, and so is any value of a key that is no size of memory.

    Raises
    ------
    ConfigError
        It is not allowed. The message lacks the key and the value, which the caller adds.
    """
    if value is None:
        return
    text = str(value).strip()
    if key == _HEAP and not _HEAP_SIZE.fullmatch(text):
        raise ConfigError("expected a number with k, m, g or t, such as 512m or 2g")
    if key in _SIZES and not _SPARK_SIZE.fullmatch(text):
        raise ConfigError("expected a size, such as 512m or 2g")
