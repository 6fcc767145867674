"""Configuration in layers: defaults, ``storm.yaml``, and ``-c key=value``.

Later layers win, key by key: defaults; the file (``--config FILE``; else ``storm.yaml`` in
``$STORM_CONF_DIR``; else ``~/.storm/storm.yaml``); ``-c`` in order. Keys with a schema are checked
in each layer; Storm's other keys are accepted; unknown keys get a warning. A nested key
(``pacemaker:`` with ``port: 7000`` below) is an error, as nothing would read it.
"""

import copy
import functools
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stormkeeper.conf.address import Address
from stormkeeper.conf.key_types import check_spark_size
from stormkeeper.conf.keys import flattened, is_known, is_secret, nearest
from stormkeeper.conf.schema import SCHEMA
from stormkeeper.conf.yaml_text import read as read_yaml
from stormkeeper.conf.yaml_text import write as write_yaml
from stormkeeper.conf.yaml_text import write_value
from stormkeeper.daemon.durable import write_file
from stormkeeper.errors import ConfigError

log = logging.getLogger(__name__)

#: Treatment of unknown keys; "warn" and "keep" keep them.
Unknown = Literal["warn", "error", "keep"]

_SHOWN = 80

#: Lists of servers, and single hosts of older releases. The last layer with either key counts, and
#: in it the list.
_LISTS_AND_HOSTS = (("pacemaker.servers", "pacemaker.host"), ("nimbus.seeds", "nimbus.host"))


class Conf(Mapping[str, Any]):
    """Configuration values by key, with every key of the schema; immutable.

    Lists and mappings are copied on access. The ``repr`` shows no values.
    """

    __slots__ = ("_overrides", "_values", "files")

    def __init__(
        self,
        values: Mapping[str, Any],
        overrides: Collection[str] = (),
        files: Mapping[Path, bool] | None = None,
    ) -> None:
        #: The files read, and whether each had any content.
        self.files: Mapping[Path, bool] = dict(files or {})
        self._values = dict(values)
        self._overrides = frozenset(overrides)

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return copy.deepcopy(value) if isinstance(value, list | dict) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Conf with {', '.join(sorted(self.changed())) or 'the defaults'}>"

    def is_override(self, key: str) -> bool:
        """Return whether ``-c`` gave `key`."""
        return key in self._overrides

    def with_values(self, values: Mapping[str, Any]) -> "Conf":
        """Return a copy in which `values` win; unknown keys are accepted."""
        merged = dict(self._values)
        _merge(merged, _checked(values, ""))
        return Conf(merged, self._overrides, self.files)

    def without_unknown(self, names: Collection[str]) -> "Conf":
        known = {n for n in names if n in SCHEMA or is_known(n)}
        kept = {k: v for k, v in self.items() if k in known or k not in names}
        return Conf(kept, self._overrides & kept.keys(), self.files)

    def pacemaker_servers(self) -> tuple[Address, ...]:
        """Return the Pacemakers of ``pacemaker.servers`` or ``pacemaker.host``."""
        host = self._values["pacemaker.host"]
        entries = self._values["pacemaker.servers"] or ([] if host is None else [host])
        port = self._values["pacemaker.port"]
        addresses = tuple(Address.parse(entry, port) for entry in entries)
        for entry, address in zip(entries, addresses, strict=True):
            if address.port == 0:
                raise ConfigError(f"the Pacemaker {entry} has no port and pacemaker.port is 0")
        return addresses

    def changed(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, by key."""
        base = defaults()._values
        return {k: v for k, v in self.items() if k not in base or not _same(v, base[k])}

    def to_yaml(self) -> str:
        """Return `changed` as YAML, secrets included."""
        return write_yaml(self.changed())

    def write(self, path: Path | str) -> None:
        """Write `to_yaml`, readable for this user only."""
        write_file(Path(path), self.to_yaml().encode(), mode=0o600)


@functools.cache
def defaults() -> Conf:
    path = Path(__file__).with_name("defaults.yaml")
    return Conf(_checked(_read_file(path)[0], path.name))


def load(
    *,
    files: Sequence[Path | str] | None = None,
    overrides: Sequence[str] = (),
    strict: bool = False,
    unknown: Unknown = "warn",
    environ: Mapping[str, str] = os.environ,
    also_known: Collection[str] = (),
    warn: Callable[[str], None] = log.warning,
    instead_of: Conf | None = None,
) -> Conf:
    """Read the configuration.

    `files`, which must exist, are read instead of ``storm.yaml``; `overrides` are ``key=value``
    texts, with values in YAML; later ones win. `strict` and `unknown` decide about unknown keys,
    beside `also_known`. `instead_of` is the configuration before a reload: a file now missing or
    empty is an error, as it is probably being replaced.

    Raises `ConfigError`, in a line, for an unreadable file or override, a value that does not fit
    its key, or an unknown key that is an error.
    """
    before = {} if instead_of is None else instead_of.files
    found = _find(environ, warn, before) if files is None else [Path(file) for file in files]
    layers = []
    had_text = {}
    for path in found:
        values, had_text[path] = _read_file(path)
        if before.get(path, False) and not had_text[path]:
            raise ConfigError(
                f"{path}: is empty and was not before, as if it were being written: write it and"
                " reload again, or restart to run with the defaults"
            )
        layers.append((str(path), values))
    commanded = _read_overrides(overrides)
    layers.append(("-c", commanded))
    merged = dict(defaults()._values)
    for source, values in layers:
        _check_names(values, source, "error" if strict else unknown, also_known, warn)
        _merge(merged, _checked(values, source))
    return Conf(merged, commanded, had_text)


class Finding(NamedTuple):
    """A fault of a key, or, without a key, of the file."""

    key: str | None
    message: str

    #: Commands fail, instead of only warning.
    is_error: bool


def check(path: Path | str, *, strict: bool = False) -> tuple[list[str], list[Finding]]:
    """Return the keys of a file, and all faults in order; `load` stops at the first."""
    path = Path(path)
    try:
        values, _ = _read_file(path)
    except ConfigError as error:
        return [], [Finding(None, str(error), is_error=True)]
    findings = []
    for key, value in values.items():
        warnings: list[str] = []
        try:
            _check_names({key: value}, str(path), "warn", (), warnings.append)
            _checked({key: value}, str(path))
        except ConfigError as error:
            findings.append(Finding(key, str(error), is_error=True))
        findings += [Finding(key, warning, is_error=strict) for warning in warnings]
    if not any(finding.is_error for finding in findings):
        try:
            load(files=[path], unknown="keep").pacemaker_servers()
        except ConfigError as error:
            findings.append(Finding("pacemaker.servers", f"{path}: {error}", is_error=True))
    return list(values), findings


def mistyped(keys: Iterable[str]) -> Iterator[str]:
    """Yield warnings about keys of a topology's conf that are probably misspelt.

    A topology may have keys of its own: only keys like Storm's count.
    """
    for key in keys:
        if key in SCHEMA or is_known(key):
            continue
        alike = nearest(key, SCHEMA)
        if alike or key.startswith("topology."):
            yield _unknown(key, alike)


def _unknown(key: str, alike: str | None) -> str:
    return f"unknown key {key}{f'; is {alike} meant?' if alike else ''}"


def _find(
    environ: Mapping[str, str], warn: Callable[[str], None], before: Collection[Path]
) -> list[Path]:
    own = _own(environ)
    directory = environ.get("STORM_CONF_DIR")
    first = Path(directory) / "storm.yaml" if directory else own
    if first is not None and _is_there(first):
        return [first]
    found = [own] if own is not None and _is_there(own) else []
    for path in before:
        if path not in found:
            raise ConfigError(
                f"{path}: is gone, and was read before: put it back and reload again, or restart to"
                " run without it"
            )
    if directory:
        instead = str(own) if found else "the defaults"
        warn(f"STORM_CONF_DIR is {directory}, but there is no {first}; using {instead}")
    return found


def _own(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HOME")
    try:
        dot_storm = (Path(home) if home else Path.home()) / ".storm"
    except RuntimeError:  # a user without a name, as in a container
        return None
    # A directory in Storm; a file of that name is the configuration itself.
    return dot_storm / "storm.yaml" if dot_storm.is_dir() else dot_storm


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return True  # the read reports it


def _read_file(path: Path) -> tuple[dict[str, Any], bool]:
    """Return a file's values, and whether the file has any content, even a comment."""
    try:
        content = path.read_bytes()
        document = read_yaml(content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if document is None:
        return {}, bool(content)
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else "a single value"
        raise ConfigError(f"{path}: must hold `key: value` lines, but holds {kind}")
    for key in document:
        if not isinstance(key, str):
            raise ConfigError(f"{path}: the key {key!r} is not text; quote it")
    return document, True


def _read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            # The rest may be a password.
            name = re.match(r"[\w.-]*", key)
            begins = name[0] if name else ""
            rest = "" if begins == override else "…"
            got = f"{begins}{rest}" if begins else "no name"
            raise ConfigError(f"-c: expected KEY=VALUE; got {got}")
        try:
            values[key] = read_yaml(text)
        except ConfigError as error:
            raise ConfigError(f"-c {key}: {error}") from error
    return values


def _check_names(
    values: Mapping[str, Any],
    source: str,
    unknown: Unknown,
    also_known: Collection[str],
    warn: Callable[[str], None],
) -> None:
    if unknown == "keep":
        return
    for key, value in values.items():
        if key in SCHEMA or key in also_known or is_known(key):
            continue
        flat = flattened(key, value, [*SCHEMA, *also_known])
        if flat is not None:
            name, inner = flat
            shown = "…" if is_secret(name) else _show(inner).removeprefix("the text ")
            raise ConfigError(f"{source}: {key}: keys are written flat: {name}: {shown}")
        message = f"{source}: {_unknown(key, nearest(key, [*SCHEMA, *also_known]))}"
        if unknown == "error":
            raise ConfigError(message)
        warn(message)


def _checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in values.items():
        key = SCHEMA.get(name)
        if key is not None and key.is_unset(value):
            checked[name] = defaults()._values[name]
            continue
        try:
            if key is None or key.is_elsewhere(value):
                check_spark_size(name, value)
                checked[name] = copy.deepcopy(value)
            else:
                checked[name] = key.convert(value)
        except ConfigError as error:
            given = "a value that is not shown here" if is_secret(name) else _show(value)
            where = f"{source}: {name}" if source else name
            raise ConfigError(f"{where}: {error}; got {given}") from error
    if checked.get("nimbus.host") and not values.get("nimbus.seeds"):
        checked["nimbus.seeds"] = [checked["nimbus.host"]]
    return checked


def _merge(merged: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for keys in _LISTS_AND_HOSTS:
        if any(layer.get(key) for key in keys):
            merged.update({key: defaults()._values[key] for key in keys})
    merged.update(layer)


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _show(value: Any) -> str:
    try:
        text = write_value(value)
    except ConfigError:
        text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"the text {shown}" if isinstance(value, str) else shown
