"""`Topology`: the decorators with which a user names spouts and bolts.

Whatever can be said of a topology without calling its functions is checked here, at the line
that is at fault. What they return is checked by the worker, before it starts any query.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, overload

from stormkeeper.errors import TopologyError
from stormkeeper.topology.component import Component, Kind

#: Names end up in znodes, in file names of checkpoints and in topology ids.
_TOPOLOGY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_COMPONENT_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

#: Storm's own components (``__acker``, ``__system``) begin so.
_RESERVED = "__"

#: Called with every topology that is made; a worker sets it while it runs a script.
on_declared: ContextVar[Callable[[Topology], None] | None] = ContextVar("on_declared", default=None)


class Topology:
    """A graph of spouts and bolts that run as streaming queries of PySpark.

    A spout returns a streaming DataFrame. A bolt takes the DataFrames of its inputs and returns
    another one, or a ``DataStreamWriter``: such a bolt is a sink, and there is one streaming query
    per sink, made of the sink and all that feeds it. A function's parameters are its inputs in
    order, and ``spark`` (the session) and ``conf`` (the configuration) where it has them.

    Parameters
    ----------
    name
        Letters, digits, and ``_ -`` after the first.
    conf
        Configuration that the topology brings along: its own keys, Storm's, and ``spark.*``. What
        the command line says (``-c key=value``) wins over it.

    Raises
    ------
    TopologyError
        When the name is no such name.

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
        """The components by id, each after all that it reads from."""
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

        Parameters
        ----------
        parallelism
            Number of partitions that its rows are spread over, and of its tasks.
        name
            Its id, where it should not be the function's name.

        Raises
        ------
        TopologyError
            When it cannot be a spout of this topology; the message says why.
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

        Parameters
        ----------
        inputs
            Components of this topology, or their ids, in the order of the function's parameters.
        parallelism
            Number of partitions that its input is spread over, and of its tasks.
        name
            Its id, where it should not be the function's name.

        Raises
        ------
        TopologyError
            When it cannot be a bolt of this topology; the message says why.
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
    """Make a topology that no worker hears of."""
    token = on_declared.set(None)
    try:
        return Topology(name, conf)
    finally:
        on_declared.reset(token)


def spread(topology: Topology, hints: Mapping[str, int]) -> None:
    """Give components of a topology another parallelism, by their ids, as a rebalance does.

    Ids that it does not have are passed over: a rebalance is checked where it is asked for.
    """
    for id_, parallelism in hints.items():
        if id_ in topology.components:
            topology.components[id_].parallelism = max(1, parallelism)


def _named(thing: Any) -> str:
    if isinstance(thing, Component):
        return repr(thing.id)
    return repr(getattr(thing, "__name__", thing))


def _described(thing: Any) -> str:
    return f"{thing!r} ({type(thing).__name__})"
