"""Which component a task belongs to, and which components are Storm's own.

Storm's workers report by task alone: which component that is, follows from the topology.
"""

from __future__ import annotations

from collections.abc import Mapping


def components_of_tasks(num_tasks: Mapping[str, int]) -> dict[int, str]:
    """Return the component of each task: tasks are numbered from 1, over the components by id.

    Parameters
    ----------
    num_tasks
        Number of tasks of each component, by its id. Storm's own components are among them; one
        such as ``__system`` may have none.
    """
    owners = (id_ for id_ in sorted(num_tasks, key=_java_order) for _ in range(num_tasks[id_]))
    return dict(enumerate(owners, start=1))


def is_system(id_: str) -> bool:
    """Return whether a component or a stream is Storm's own, such as ``__acker``."""
    return id_.startswith("__")


def _java_order(text: str) -> bytes:
    # Java compares strings by units of 16 bits, which puts an emoji before some other characters.
    return text.encode("utf-16-be", "surrogatepass")
