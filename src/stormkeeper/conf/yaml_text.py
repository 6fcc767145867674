"""YAML of configurations, read and written.

YAML 1.1, as in Storm, but a duplicate key is an error and a date stays text.
"""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from stormkeeper.errors import ConfigError

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML was built without libyaml: only slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]


class _Loader(_SafeLoader):
    """Refuses duplicate keys, and has no dates."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Before merge keys (<<) are resolved, which would look like duplicates. A merged mapping
        # may come more than once.
        if id(node) not in self._checked:
            self._checked.add(id(node))
            self._refuse_duplicates(node)
        super().flatten_mapping(node)

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the base class refuses it
            if key in seen:
                raise _DuplicateKeyError(f"the key {key} stands twice", key_node.start_mark)
            seen.add(key)


class _DuplicateKeyError(yaml.MarkedYAMLError):
    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(problem=problem, problem_mark=mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}


class _OneLineDumper(yaml.SafeDumper):
    """Writes texts on a single line, and mappings in order."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_OneLineDumper.add_representer(str, _represent_text)


def read(text: str | bytes) -> Any:
    """Return the single document in `text`.

    Raises `ConfigError` with line and column, without the text, which may be a secret.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(_fault(error)) from None
    except (ValueError, OverflowError, RecursionError):
        # Texts that only look like numbers (0b, 1:99e9), or absurd nesting.
        raise ConfigError("a value cannot be read as what it looks like; quote it") from None


def key_lines(text: str | bytes) -> dict[str, int]:
    """Return the line, from 1, of each key; empty without YAML."""
    try:
        node = yaml.compose(text, _SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return {}
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return {str(key.value): key.start_mark.line + 1 for key, _ in pairs}


def write(values: Mapping[str, Any]) -> str:
    """Return a YAML document; raise `ConfigError` if a value has no YAML form."""
    return _dump(dict(values), flow=False)


def write_value(value: Any) -> str:
    """Return a line of YAML; raise `ConfigError` if the value has no YAML form."""
    return _dump(value, flow=True).removesuffix("...\n").rstrip("\n")


def _dump(value: Any, *, flow: bool) -> str:
    try:
        return yaml.dump(
            value,
            Dumper=_OneLineDumper,
            default_flow_style=flow,
            sort_keys=False,
            width=math.inf,
            allow_unicode=True,
        )
    except yaml.YAMLError as error:
        raise ConfigError(f"a value of type {type(value).__name__} has no YAML form") from error


def _fault(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"it is not text in UTF-8 or holds a control character (at {error.position})"
    if not isinstance(error, yaml.MarkedYAMLError):
        return "it is not YAML"
    mark = error.problem_mark
    where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    if isinstance(error, _DuplicateKeyError):
        return f"{error.problem}{where}"
    if "single document" in str(error.context):
        return f"it holds more than one document{where}"
    if isinstance(error, yaml.composer.ComposerError | yaml.constructor.ConstructorError):
        # These messages quote the text.
        return f"it has an anchor, alias, tag or key that YAML does not define{where}"
    return f"it is not YAML: {error.problem}{where}"
