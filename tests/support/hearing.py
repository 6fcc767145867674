"""What a session with the cluster's state is told, as a list that a test can look at."""

import itertools
import threading

from stormkeeper.state.storage import ClusterState, ConnectionState, EventType
from support.waiting import DEADLINE_SECS

_numbers = itertools.count(1)

Told = tuple[EventType, str] | ConnectionState


class Hearing:
    """Events and connection states of a session, in the order in which they were told."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._told: list[Told] = []
        self._missed = 0
        self._more = threading.Condition()
        state.register(self._hear_event)
        state.add_listener(self._hear)

    def everything(self) -> list[Told]:
        """All that was told until now, and was on its way."""
        # Events come in order: what was under way comes before that of a node made for this.
        path = f"/heard-{next(_numbers)}"
        last = (EventType.NODE_CREATED, path)
        assert not self._state.node_exists(path, watch=True)
        self._state.set_data(path, b"")
        with self._more:
            assert self._more.wait_for(lambda: last in self._told, DEADLINE_SECS), (
                "an event was lost"
            )
            self._told.remove(last)
        self._state.delete_node(path)
        return list(self._told)

    def events(self) -> list[tuple[EventType, str]]:
        """All events of nodes until now."""
        return [told for told in self.everything() if isinstance(told, tuple)]

    @property
    def missed(self) -> int:
        """How often it was told that it may have missed events, until now; not in the lists."""
        self.everything()
        return self._missed

    def forget(self) -> None:
        """Forget what was told until now."""
        self.everything()
        self._told.clear()

    def _hear_event(self, event: EventType, path: str) -> None:
        if event is EventType.EVENTS_MISSED:
            assert path == "/"
            self._missed += 1
        else:
            self._hear((event, path))

    def _hear(self, told: Told) -> None:
        with self._more:
            self._told.append(told)
            self._more.notify_all()
