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

#: Storm reads numbers as Java ints; a larger number would stop Storm's daemons.
JAVA_INT_MAX = 2**31 - 1

#: A Java class with package, in any script.
_CLASS: Final = re.compile(r"[^\W\d][\w$]*(?:\.[^\W\d][\w$]*)+")

#: Powers of 1024. Not ``MB``, which may mean a thousand.
_UNITS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])(?:iB?)?", re.IGNORECASE)

Text = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Key:
    """A configuration key that is read."""

    name: str
    #: In a word, for the documentation.
    kind: str
    #: A line for the documentation.
    meaning: str
    #: For msgspec, which converts values strictly; then in words.
    type: Any
    allowed: str
    #: A single value stands for a list of one.
    is_list: bool = False
    #: Converts a text to `type`; raises `ConfigError`.
    read: Callable[[str], object] | None = None
    #: Raises `ConfigError` for a value of `type` that the key forbids.
    check: Callable[[Any], object] | None = None
    #: Values that mean "not set", as in Storm.
    unset: tuple[Any, ...] = ()
    #: The value names a Java class. Others are kept, as Storm may have them.
    is_class: bool = False

    def or_null(self, *unset: Any) -> "Key":
        """Return this key with null, and further values that mean "not set"."""
        allowed, unset = f"{self.allowed}, or null", (*self.unset, *unset)
        return dataclasses.replace(self, type=self.type | None, allowed=allowed, unset=unset)

    def is_unset(self, value: Any) -> bool:
        return any(type(value) is type(none) and value == none for none in self.unset)

    def is_elsewhere(self, value: Any) -> bool:
        """Return whether `value` names a Java class that only Storm may have."""
        return self.is_class and isinstance(value, str) and _CLASS.fullmatch(value) is not None

    def convert(self, value: Any) -> Any:
        """Return `value` as this key's type; raise `ConfigError` without key and value."""
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


def whole(
    name: str, meaning: str, *, least: int, most: int = JAVA_INT_MAX, kind: str = "number"
) -> Key:
    limit = f"from {least} to {most}" if most < JAVA_INT_MAX else f"of {least} or more"
    bounded = Annotated[int, Meta(ge=least, le=most)]
    return Key(name, kind, meaning, bounded, f"a whole number {limit}")


def millis(name: str, meaning: str, *, least: int = 1) -> Key:
    return whole(name, meaning, least=least, kind="ms")


def hours(name: str, meaning: str) -> Key:
    return whole(name, meaning, least=1, kind="hours")


def port(name: str, meaning: str) -> Key:
    return whole(name, meaning, least=0, most=MAX_PORT, kind="port")


def seconds(name: str, meaning: str, *, least: int | None = None) -> Key:
    """Return a key of seconds; without `least`, above 0."""
    if least is None:
        limits, above = Meta(gt=0, le=JAVA_INT_MAX), "above 0"
    else:
        limits, above = Meta(ge=least, le=JAVA_INT_MAX), f"of {least} or more"
    kind = Annotated[int, limits] | Annotated[float, limits]
    return Key(name, "seconds", meaning, kind, f"a number of seconds {above}")


def size(name: str, meaning: str) -> Key:
    # Java does not read these, so its ints are no limit.
    kind = Annotated[int, Meta(ge=0, le=2**62)]
    allowed = "a number of bytes, such as 536870912, 512m, 512 MiB or 1.5 GiB"
    return Key(name, "size", meaning, kind, allowed, read=size_of)


def size_of(written: str) -> int:
    """Return the bytes of a size such as ``512m``, ``512 MiB`` or ``1.5G``.

    Units are powers of 1024: k, m, g and t, in either case, alone or with ``i`` or ``iB``.
    """
    found = _SIZE.fullmatch(written)
    if found is None:
        raise ConfigError(f"{written} is no size: write it as 512m, 512 MiB or 1.5 GiB")
    return int(float(found[1]) * 1024 ** _UNITS[found[2].lower()])


def switch(name: str, meaning: str) -> Key:
    return Key(name, "true/false", meaning, bool, "true or false")


def text(name: str, meaning: str, kind: str = "text") -> Key:
    return Key(name, kind, meaning, Text, "text that is not empty")


def storms_text(name: str, meaning: str, kind: str = "text") -> Key:
    """Return a key of texts; null and the empty text are null, as in Storm."""
    return text(name, meaning, kind).or_null("")


def one_of(name: str, values: Any, meaning: str) -> Key:
    shown = "/".join(map(str, values.__args__))
    return Key(name, shown, meaning, values, "one of " + ", ".join(values.__args__))


def class_of(name: str, values: Any, meaning: str) -> Key:
    """Return a key of Java classes; Storm may have others."""
    return dataclasses.replace(one_of(name, values, meaning), kind="class", is_class=True)


def some_of(name: str, values: Any, meaning: str) -> Key:
    allowed = "a list of " + ", ".join(values.__args__)
    return Key(name, "list", meaning, list[values], allowed, is_list=True)


def amount(name: str, meaning: str) -> Key:
    kind = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0, le=2.0**62)]
    return Key(name, "number", meaning, kind, "a number above 0")


def host(name: str, meaning: str) -> Key:
    return Key(name, "host", meaning, Text, "a host name or an IP address", check=check_host)


def server(name: str, meaning: str) -> Key:
    return Key(name, "host:port", meaning, Text, "host or host:port", check=check_address)


def variables(name: str, meaning: str) -> Key:
    # A number or a switch in YAML is meant as text.
    kind = dict[Text, str | int | float | bool]
    allowed = "a mapping of names without = to texts without NUL"
    return Key(name, "mapping", meaning, kind, allowed, check=check_variables)


def servers(name: str, meaning: str, *, least: int = 0, unset: tuple[Any, ...] = ()) -> Key:
    return Key(
        name,
        "hosts",
        meaning,
        Annotated[list[Text], Meta(min_length=least)],
        "a list of host or host:port" + (", not empty" if least else ""),
        is_list=True,
        check=check_addresses,
        unset=unset,
    )


def texts(name: str, meaning: str) -> Key:
    """Return a key of lists of texts; null is an empty list, as in Storm."""
    return Key(name, "list", meaning, list[Text], "a list of texts", is_list=True, unset=(None,))


def check_address(value: str) -> None:
    Address.parse(value, MAX_PORT)


def check_addresses(value: list[str]) -> None:
    for entry in value:
        check_address(entry)


def check_root(value: str) -> None:
    """Raise `ConfigError` unless `value` is a printable path of ZooKeeper."""
    if fault := root_fault(value):
        raise ConfigError(fault)


def check_variables(value: dict[str, Any]) -> None:
    if any("=" in name or "\0" in f"{name}{text}" for name, text in value.items()):
        raise ConfigError("no environment variable")


def check_distinct(value: list[int]) -> None:
    if len(set(value)) < len(value):
        raise ConfigError("twice the same")


#: For the JVM, which knows fewer units than Spark, and counts bytes without a unit.
_HEAP: Final = "spark.driver.memory"
_HEAP_SIZE: Final = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)

#: For Spark, without a unit in MiB or bytes.
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
    """Check Spark's sizes of memory; other keys and null are allowed.

    A size that the JVM cannot read would end the JVM before the setting is named.
    """
    if value is None:
        return
    text = str(value).strip()
    if key == _HEAP and not _HEAP_SIZE.fullmatch(text):
        raise ConfigError("expected a number with k, m, g or t, such as 512m or 2g")
    if key in _SIZES and not _SPARK_SIZE.fullmatch(text):
        raise ConfigError("expected a size, such as 512m or 2g")
