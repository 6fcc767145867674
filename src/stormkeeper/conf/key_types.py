"""Types of configuration values: numbers, times, texts, addresses; and Spark's sizes of memory.

Ranges of Storm's keys are Java's, because Storm's daemons may read the same file.
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

#: Storm reads numbers as Java ints; a larger number in a shared file would stop its daemons.
JAVA_INT_MAX = 2**31 - 1

#: A Java class with its package, in any script.
_CLASS: Final = re.compile(r"[^\W\d][\w$]*(?:\.[^\W\d][\w$]*)+")

#: Units of sizes as powers of 1024. Not ``MB``, which may mean a thousand.
_UNITS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])(?:iB?)?", re.IGNORECASE)

Text = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Key:
    """A configuration key that is read.

    Parameters
    ----------
    type, allowed
        Type to which msgspec converts the value, strictly; and the same in words.
    is_list
        Whether a single value stands for a list of one.
    read
        Converts a text to `type`; raises `ConfigError`.
    check
        Raises `ConfigError` for values that the type permits and the key does not.
    unset
        Values that mean "not set", as in Storm.
    is_class
        Whether the value names a Java class. Other classes are kept: Storm may have them.
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
        """Return whether `value` names a Java class that only Storm may have."""
        return self.is_class and isinstance(value, str) and _CLASS.fullmatch(value) is not None

    def convert(self, value: Any) -> Any:
        """Return `value` as this key's type.

        Raises `ConfigError` without key and value: the caller knows whether the value is a secret.
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
    """Return a key of whole numbers, both bounds included."""
    limit = f"from {least} to {most}" if most < JAVA_INT_MAX else f"of {least} or more"
    return Key(name, Annotated[int, Meta(ge=least, le=most)], f"a whole number {limit}", meaning)


def whole_or_null(name: str, meaning: str, *, least: int) -> Key:
    """Return a key of whole numbers or null."""
    key = whole(name, meaning, least=least)
    return Key(name, key.type | None, f"{key.allowed}, or null", meaning)


def port(name: str, meaning: str) -> Key:
    """Return a key of TCP ports, or 0."""
    return whole(name, meaning, least=0, most=MAX_PORT)


def seconds(name: str, meaning: str) -> Key:
    """Return a key of times above 0 seconds."""
    kind = (
        Annotated[int, Meta(gt=0, le=JAVA_INT_MAX)] | Annotated[float, Meta(gt=0, le=JAVA_INT_MAX)]
    )
    return Key(name, kind, "a number of seconds above 0", meaning)


def seconds_from(name: str, meaning: str, *, least: int) -> Key:
    """Return a key of times of `least` seconds or more."""
    kind = (
        Annotated[int, Meta(ge=least, le=JAVA_INT_MAX)]
        | Annotated[float, Meta(ge=least, le=JAVA_INT_MAX)]
    )
    return Key(name, kind, f"a number of seconds of {least} or more", meaning)


def seconds_or_null(name: str, meaning: str) -> Key:
    """Return a key of times above 0 seconds, or null."""
    key = seconds(name, meaning)
    return Key(name, key.type | None, f"{key.allowed}, or null", meaning)


def bytes_or_null(name: str, meaning: str) -> Key:
    """Return a key of sizes, in bytes or with a unit (see `size_of`), or null."""
    # Java does not read these, so its ints are no limit.
    kind = Annotated[int, Meta(ge=0, le=2**62)] | None
    allowed = "a number of bytes, such as 536870912, 512m, 512 MiB or 1.5 GiB, or null"
    return Key(name, kind, allowed, meaning, read=size_of)


def size_of(written: str) -> int:
    """Return the bytes of a size such as ``512m``, ``512 MiB`` or ``1.5G``.

    Units are k, m, g and t, in either case, alone or with ``i`` or ``iB``: powers of 1024. Raises
    `ConfigError` for other texts.
    """
    found = _SIZE.fullmatch(written)
    if found is None:
        raise ConfigError(f"{written} is no size: write it as 512m, 512 MiB or 1.5 GiB")
    return int(float(found[1]) * 1024 ** _UNITS[found[2].lower()])


def port_or_null(name: str, meaning: str) -> Key:
    """Return a key of TCP ports, 0, or null."""
    return Key(name, port(name, "").type | None, f"a port from 0 to {MAX_PORT}, or null", meaning)


def switch(name: str, meaning: str) -> Key:
    """Return a key of true and false."""
    return Key(name, bool, "true or false", meaning)


def text(name: str, meaning: str) -> Key:
    """Return a key of texts that are not empty."""
    return Key(name, Text, "text that is not empty", meaning)


def text_or_null(name: str, meaning: str) -> Key:
    """Return a key of texts that are not empty, or null."""
    return Key(name, Text | None, "text that is not empty, or null", meaning)


def storms_text_or_null(name: str, meaning: str) -> Key:
    """Return a key of texts or null, for which an empty text is null, as in Storm."""
    key = text_or_null(name, meaning)
    return dataclasses.replace(key, unset=("",))


def class_of(name: str, kind: Any, meaning: str) -> Key:
    """Return a key of Java classes, of which Storm may have others."""
    return dataclasses.replace(one_of(name, kind, meaning), is_class=True)


def one_of(name: str, kind: Any, meaning: str) -> Key:
    """Return a key of the values of `kind`, a ``Literal``."""
    return Key(name, kind, "one of " + ", ".join(kind.__args__), meaning)


def some_of(name: str, kind: Any, meaning: str) -> Key:
    """Return a key of lists of values of `kind`, a ``Literal``."""
    return Key(name, list[kind], "a list of " + ", ".join(kind.__args__), meaning, is_list=True)


def amount_or_null(name: str, meaning: str) -> Key:
    """Return a key of numbers above 0, or null."""
    kind = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0, le=2.0**62)] | None
    return Key(name, kind, "a number above 0, or null", meaning)


def host(name: str, meaning: str) -> Key:
    """Return a key of host names or addresses without a port."""
    return Key(name, Text, "a host name or an IP address", meaning, check=check_host)


def host_or_null(name: str, meaning: str, *, unset: tuple[Any, ...] = ()) -> Key:
    """Return a key of host names or addresses without a port, or null."""
    allowed = "a host name or an IP address, or null"
    return Key(name, Text | None, allowed, meaning, check=check_host, unset=unset)


def one_server_or_null(name: str, meaning: str) -> Key:
    """Return a key of an address or null; an empty text is null, as in Storm."""
    allowed = "host or host:port, or null"
    return Key(name, Text | None, allowed, meaning, check=check_address, unset=("",))


def variables_or_null(name: str, meaning: str) -> Key:
    """Return a key of mappings of environment variables to texts, or null."""
    # A number or a switch in YAML is meant as text.
    kind = dict[Text, str | int | float | bool] | None
    allowed = "a mapping of names without = to texts without NUL, or null"
    return Key(name, kind, allowed, meaning, check=check_variables)


def servers(name: str, meaning: str, *, least: int = 0, unset: tuple[Any, ...] = ()) -> Key:
    """Return a key of lists of at least `least` addresses."""
    kind = Annotated[list[Text], Meta(min_length=least)]
    allowed = "a list of host or host:port" + (", not empty" if least else "")
    return Key(name, kind, allowed, meaning, is_list=True, check=check_addresses, unset=unset)


def texts(name: str, meaning: str) -> Key:
    """Return a key of lists of texts; null is an empty list, as in Storm."""
    return Key(name, list[Text], "a list of texts", meaning, is_list=True, unset=(None,))


def check_address(value: str) -> None:
    """Raise `ConfigError` unless `value` is ``host`` or ``host:port``."""
    Address.parse(value, MAX_PORT)


def check_addresses(value: list[str]) -> None:
    """Raise `ConfigError` unless all are ``host`` or ``host:port``."""
    for entry in value:
        check_address(entry)


def check_root(value: str) -> None:
    """Raise `ConfigError` unless `value` is a printable path of ZooKeeper."""
    if fault := root_fault(value):
        raise ConfigError(fault)


def check_variables(value: dict[str, Any]) -> None:
    """Raise `ConfigError` if a process cannot have these environment variables."""
    if any("=" in name or "\0" in f"{name}{text}" for name, text in value.items()):
        raise ConfigError("no environment variable")


def check_distinct(value: list[int]) -> None:
    """Raise `ConfigError` for duplicates."""
    if len(set(value)) < len(value):
        raise ConfigError("twice the same")


#: Passed to the JVM, which knows fewer units than Spark, and counts bytes without a unit.
_HEAP: Final = "spark.driver.memory"
_HEAP_SIZE: Final = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)

#: Read by Spark, without a unit in MiB or bytes.
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
    """Check a value of Spark's sizes of memory; other keys and null are allowed.

    A size that the JVM cannot read would end it before it can name the setting. Raises
    `ConfigError` without key and value, which the caller adds.
    """
    if value is None:
        return
    text = str(value).strip()
    if key == _HEAP and not _HEAP_SIZE.fullmatch(text):
        raise ConfigError("expected a number with k, m, g or t, such as 512m or 2g")
    if key in _SIZES and not _SPARK_SIZE.fullmatch(text):
        raise ConfigError("expected a size, such as 512m or 2g")
