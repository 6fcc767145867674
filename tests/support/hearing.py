"""What a session with the cluster's state is told, as a list that a test can look at."""

import itertools

from stormkeeper.state.storage import ClusterState, ConnectionState, EventType
from support.waiting import until

_numbers = itertools.count(1)


class Hearing:
    """Events and connection states of a session, in the order in which they were told."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._told: list[tuple[EventType, str] | ConnectionState] = []
        state.register(lambda event, path: self._told.append((event, path)))
        state.add_listener(self._told.append)

    def everything(self) -> list[tuple[EventType, str] | ConnectionState]:
        """All that was told until now, and was on its way."""
        # Events come in order: what was under way comes before that of a node made for this.
        last = f"/heard-{next(_numbers)}"
        assert not self._state.node_exists(last, watch=True)
        self._state.set_data(last, b"")
        until(lambda: (EventType.NODE_CREATED, last) in self._told)
        self._told.remove((EventType.NODE_CREATED, last))
        self._state.delete_node(last)
        return list(self._told)

    def events(self) -> list[tuple[EventType, str]]:
        """All events of nodes until now."""
        return [told for told in self.everything() if isinstance(told, tuple)]

    def forget(self) -> None:
        """Forget what was told until now."""
        self.everything()
        self._told.clear()
