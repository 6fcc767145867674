"""A component: a spout or a bolt, with its user's function and what the function is called with.

Without the function it is a `ComponentDescription`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from stormkeeper.errors import TopologyError

Kind = Literal["spout", "bolt"]

#: Parameters that are filled by name; every other one takes an input, in order.
SERVICES = ("spark", "conf")


class ComponentDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A component without its function.

    Parameters
    ----------
    id
        Its name in the topology; unique there.
    kind
        "spout" or "bolt".
    inputs
        Ids of the components that it reads from, in the order of the function's parameters; one
        that is read twice stands here twice.
    parallelism
        Number of partitions that its work is spread over, and of its tasks.
    """

    id: str
    kind: Kind
    inputs: tuple[str, ...]
    parallelism: int


class Component:
    """A spout or bolt of a topology, as its decorator returns it.

    A bolt names it as an input. Calling it calls the user's function, so that users can test it as
    if it were not decorated.

    Parameters
    ----------
    id
        Its name in the topology; unique there.
    kind
        "spout" or "bolt".
    function
        The user's function.
    inputs
        Ids of the components that it reads from, in the order of the function's parameters; one
        that is read twice stands here twice.
    parallelism
        Number of partitions that its work is spread over, and of its tasks.

    Raises
    ------
    TopologyError
        When the function cannot be called with these inputs.
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
        # A fault in the signature is found here, where the user's traceback points at it.
        self.arguments([None] * len(self.inputs), dict.fromkeys(SERVICES))
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.id}>"

    @property
    def description(self) -> ComponentDescription:
        """The component without its function."""
        return ComponentDescription(self.id, self.kind, self.inputs, self.parallelism)

    @property
    def place(self) -> str:
        """File and line of the function, ``job.py, line 7``; empty where it is not of Python."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else ""

    def arguments(
        self, inputs: Sequence[Any], services: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments to call the function with.

        Parameters
        ----------
        inputs
            A value for each of `Component.inputs`.
        services
            Values of ``spark`` and ``conf``, which the function gets if it has such a parameter.

        Raises
        ------
        TopologyError
            When the function has more or fewer parameters than there are inputs.
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
    except ValueError:  # something written in C, which says nothing about itself
        return [inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
