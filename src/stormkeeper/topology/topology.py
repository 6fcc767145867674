"""`Topology`: the decorators with which a user names spouts and bolts.

Checks without a call of the functions are made here, at the faulty line. The worker checks what the
functions return, before it starts a query.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Literal, overload

import msgspec

from stormkeeper.errors import TopologyError

#: Parts of znodes, of checkpoints' file names and of topology ids.
_TOPOLOGY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_COMPONENT_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

#: Of Storm's own components (``__acker``, ``__system``).
_RESERVED = "__"

#: Called with each new topology; set by a worker while it runs a script.
on_declared: ContextVar[Callable[[Topology], None] | None] = ContextVar("on_declared", default=None)


class Topology:
    """A graph of spouts and bolts that run as streaming queries of PySpark.

    A spout returns a streaming DataFrame. A bolt takes the DataFrames of its inputs and returns
    another DataFrame, or a ``DataStreamWriter``: then it is a sink. Each sink with everything that
    feeds it is one streaming query. A function's parameters are its inputs in order and, if
    present, ``spark`` (the session) and ``conf`` (the configuration).

    Parameters
    ----------
    name
        Letters, digits, ``_``, and ``-`` after the first.
    conf
        The topology's own keys, Storm's, and ``spark.*``; ``-c key=value`` overrides them.

    Examples
    --------
    >>> topology = Topology("errors-by-host", conf={"input": "/var/log/app"})
    >>> @topology.spout
    ... def lines(spark, conf):
    ...     return spark.readStream.text(conf["input"])
    >>> @topology.bolt(lines, parallelism=2)
    ... def errors(lines):
    ...     return lines.where("value LIKE '%ERROR%'")
    >>> @topology.bolt(errors)
    ... def show(errors):
    ...     return errors.writeStream.format("console")
    >>> topology.components["errors"].inputs
    ('lines',)
    """

    def __init__(self, name: str, conf: Mapping[str, Any] | None = None) -> None:
        if not isinstance(name, str) or not _TOPOLOGY_NAME.fullmatch(name):
            raise TopologyError(
                f"{name!r} is no name for a topology: use letters, digits, and _ - after the "
                "first, as in Topology('word-count')"
            )
        if conf is not None and not isinstance(conf, Mapping):
            raise TopologyError(
                f"the conf of the topology {name!r} must be a mapping of keys to values, "
                f"not {_described(conf)}"
            )
        for key in conf or {}:
            if not isinstance(key, str):
                raise TopologyError(
                    f"the conf of the topology {name!r} has the key {key!r}: keys are text"
                )
        self.name = name
        self.conf: Mapping[str, Any] = MappingProxyType(dict(conf or {}))
        self._components: dict[str, Component] = {}
        declared = on_declared.get()
        if declared is not None:
            declared(self)

    def __repr__(self) -> str:
        return f"<Topology {self.name}: {', '.join(self._components) or 'empty'}>"

    @property
    def components(self) -> Mapping[str, Component]:
        """The components by id, each after its inputs."""
        return MappingProxyType(self._components)

    @overload
    def spout(self, function: Callable[..., Any], /) -> Component: ...

    @overload
    def spout(
        self, /, *, parallelism: int = 1, name: str | None = None
    ) -> Callable[[Callable[..., Any]], Component]: ...

    def spout(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *others: Any,
        parallelism: int = 1,
        name: str | None = None,
    ) -> Component | Callable[[Callable[..., Any]], Component]:
        """Make a function a spout: ``@topology.spout``, or with settings in parentheses.

        `parallelism` is the number of partitions and of tasks, `name` the id, by default the
        function's. Raises `TopologyError`.
        """
        if others or isinstance(function, Component | str):
            raise TopologyError(
                "a spout reads from no component: use @topology.bolt(...) for a function that "
                f"reads from {_named(function)}"
            )
        if function is not None and not callable(function):
            raise TopologyError(f"a spout is a function, not {_described(function)}")
        if function is not None:
            return self._add("spout", function, (), parallelism, name)
        return lambda decorated: self._add("spout", decorated, (), parallelism, name)

    def bolt(
        self, /, *inputs: Component | str, parallelism: int = 1, name: str | None = None
    ) -> Callable[[Callable[..., Any]], Component]:
        """Make a function a bolt that reads from `inputs`: ``@topology.bolt(lines)``.

        `inputs` are components or their ids, in the order of the function's parameters;
        `parallelism` and `name` as for `spout`. Raises `TopologyError`.
        """
        ids = [self._input(given) for given in inputs]

        def decorate(function: Callable[..., Any]) -> Component:
            if not ids:
                raise TopologyError(
                    f"the bolt {_named(function)} reads from nothing: name its inputs, as in "
                    f"@topology.bolt({next(iter(self._components), 'lines')}), "
                    "or make it a spout"
                )
            return self._add("bolt", function, ids, parallelism, name)

        return decorate

    def _input(self, given: object) -> str:
        if isinstance(given, str):
            if given not in self._components:
                raise TopologyError(f"the input {given!r} is unknown{self._hint(given)}")
            return given
        if isinstance(given, Component):
            if self._components.get(given.id) is not given:
                raise TopologyError(
                    f"the input {given.id!r} is a component of another topology, "
                    f"not of {self.name!r}"
                )
            return given.id
        if callable(given):
            raise TopologyError(
                f"{_named(given)} is no component yet: a bolt's function goes below "
                "@topology.bolt(its inputs), and an input must have been decorated with "
                "@topology.spout or @topology.bolt before"
            )
        raise TopologyError(
            f"an input is a component or its id, not {_described(given)}; several inputs are "
            "several arguments: @topology.bolt(left, right)"
        )

    def _hint(self, wrong: str) -> str:
        close = difflib.get_close_matches(wrong, self._components, n=1)
        if close:
            return f"; is {close[0]!r} meant?"
        known = ", ".join(self._components) or "none yet"
        return f": define it above the bolt that reads from it (components so far: {known})"

    def _add(
        self,
        kind: Kind,
        function: Callable[..., Any],
        inputs: tuple[str, ...] | list[str],
        parallelism: int,
        name: str | None,
    ) -> Component:
        if isinstance(function, Component):
            raise TopologyError(
                f"{function.id!r} is a {function.kind} already; a function is one component"
            )
        if not callable(function):
            raise TopologyError(f"a {kind} is a function, not {_described(function)}")
        id_ = name if name is not None else getattr(function, "__name__", None)
        if not isinstance(id_, str) or not _COMPONENT_ID.fullmatch(id_):
            raise TopologyError(
                f"{id_!r} is no id for a {kind}: use letters, digits, and _ . - after the first, "
                f"as in @topology.{kind}({'' if kind == 'spout' else 'lines, '}name='words')"
            )
        if id_.startswith(_RESERVED):
            raise TopologyError(f"the id {id_!r} is reserved: ids that begin with __ are Storm's")
        if id_ in self._components:
            raise TopologyError(
                f"the topology {self.name!r} has a {self._components[id_].kind} {id_!r} already: "
                "rename the function or give the component another id with name=..."
            )
        if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
            raise TopologyError(
                f"the parallelism of {id_!r} is a whole number of 1 or more, not {parallelism!r}"
            )
        component = Component(id_, kind, function, inputs, parallelism)
        self._components[id_] = component
        return component


def unheard(name: str, conf: Mapping[str, Any] | None = None) -> Topology:
    """Make a topology without calling `on_declared`."""
    token = on_declared.set(None)
    try:
        return Topology(name, conf)
    finally:
        on_declared.reset(token)


def spread(topology: Topology, hints: Mapping[str, int]) -> None:
    """Set the parallelism of components by id, as a rebalance does; unknown ids are ignored."""
    for id_, parallelism in hints.items():
        if id_ in topology.components:
            topology.components[id_].parallelism = max(1, parallelism)


def _named(thing: Any) -> str:
    if isinstance(thing, Component):
        return repr(thing.id)
    return repr(getattr(thing, "__name__", thing))


def _described(thing: Any) -> str:
    return f"{thing!r} ({type(thing).__name__})"


Kind = Literal["spout", "bolt"]

#: Parameters that are filled by name; all others are inputs, in order.
SERVICES = ("spark", "conf")


class ComponentDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A component without its function.

    `inputs` are ids, in the order of the function's parameters.
    """

    id: str
    kind: Kind
    inputs: tuple[str, ...]
    parallelism: int


class Component:
    """A spout or bolt, as its decorator returns it; bolts name it as an input.

    A call calls the user's function, for tests. Raises `TopologyError` if the function does not
    take these inputs.
    """

    def __init__(
        self,
        id: str,  # noqa: A002  (Storm's name for it)
        kind: Kind,
        function: Callable[..., Any],
        inputs: Sequence[str] = (),
        parallelism: int = 1,
    ) -> None:
        self.id = id
        self.kind = kind
        self.function = function
        self.inputs = tuple(inputs)
        self.parallelism = parallelism
        # Here the user's traceback points at the decorator.
        self.arguments([None] * len(self.inputs), dict.fromkeys(SERVICES))
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.id}>"

    @property
    def description(self) -> ComponentDescription:
        return ComponentDescription(self.id, self.kind, self.inputs, self.parallelism)

    @property
    def place(self) -> str:
        """File and line of the function, ``job.py, line 7``; empty for a function in C."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else ""

    def arguments(
        self, inputs: Sequence[Any], services: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and keyword arguments of a call.

        `inputs` has a value for each of `Component.inputs`; `services` has those of `SERVICES`, for
        parameters with these names. Raises `TopologyError` for a wrong number of parameters.
        """
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        left = list(inputs)
        unfilled: list[str] = []
        for parameter in _parameters(self.function):
            by_keyword = parameter.kind is parameter.KEYWORD_ONLY
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional += left
                left = []
            elif parameter.kind is parameter.VAR_KEYWORD:
                pass
            elif parameter.name in services and by_keyword:
                keywords[parameter.name] = services[parameter.name]
            elif parameter.name in services:
                positional.append(services[parameter.name])
            elif left and not by_keyword:
                positional.append(left.pop(0))
            elif parameter.default is parameter.empty:
                unfilled.append(parameter.name)
            elif not by_keyword:
                positional.append(parameter.default)
        if unfilled:
            raise TopologyError(self._too_many_parameters(unfilled))
        if left:
            raise TopologyError(self._too_few_parameters(len(left)))
        return positional, keywords

    def _too_many_parameters(self, unfilled: Sequence[str]) -> str:
        names = _listed(unfilled)
        what = f"nothing to give to its parameter{'s'[: len(unfilled) != 1]} {names}"
        if self.kind == "spout":
            return (
                f"the spout {self.id!r} has {what}: a spout reads from no component, "
                "and may have the parameters `spark` and `conf`"
            )
        return (
            f"the bolt {self.id!r} has {what}: it reads from {_listed(self.inputs)}, one parameter "
            "for each in that order, and may have `spark` and `conf` besides; name another input "
            "in @topology.bolt(...) or give the parameter a default"
        )

    def _too_few_parameters(self, missing: int) -> str:
        return (
            f"the bolt {self.id!r} reads from {_listed(self.inputs)}, but its function has "
            f"{missing} parameter{'s'[: missing != 1]} too few to take them: one is needed for "
            "each input, besides `spark` and `conf`"
        )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C, without a signature
        return [inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
