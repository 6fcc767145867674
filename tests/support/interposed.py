"""A session with some of its calls replaced by a test's own."""

from collections.abc import Callable
from typing import Any

from stormkeeper.state.storage import ClusterState


class Interposed:
    """Has the calls that are given here, and all others of `session`."""

    def __init__(self, session: ClusterState, **calls: Callable[..., Any]) -> None:
        self._session = session
        self.__dict__.update(calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)
