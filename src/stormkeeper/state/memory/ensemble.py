"""A server in memory that several sessions share, and the failures that it can be told to have.

It has no clock: a session ends, is cut off, or loses an answer, when it is told to.
"""

import itertools
import threading
from collections.abc import Callable, Sequence

from stormkeeper.state.callbacks import Callbacks
from stormkeeper.state.memory.state import Losing, MemoryState
from stormkeeper.state.memory.tree import Event, MemoryTree
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.transactions import Operation

#: Takes the tree's count of changes, the id of the session that wrote, and what it asked for.
CommitListener = Callable[[int, int, Sequence[Operation]], None]


class MemoryEnsemble:
    """A tree of nodes that several sessions share. Safe for many threads.

    Parameters
    ----------
    inline
        Have no threads: callbacks run in `deliver`, so that a simulation says when.
    on_commit
        Told of every write that changed something, in order, also of those whose answer was lost;
        under the ensemble's lock. What a write asked for is told, not each step of it: of
        ``mkdirs`` a `Create`, of ``delete_node`` a `Delete`. The nodes that go with a session are
        not told.

    Examples
    --------
    >>> ensemble = MemoryEnsemble(inline=True)
    >>> state = ensemble.session()
    >>> registration = state.register(lambda event, path: print(event.value, path))
    >>> state.get_data("/storms", watch=True)
    >>> state.set_data("/storms", b"")
    >>> ensemble.deliver()
    created /storms
    """

    def __init__(self, *, inline: bool = False, on_commit: CommitListener | None = None) -> None:
        self.lock = threading.RLock()
        self.tree = MemoryTree()
        self._inline = inline
        self._on_commit = on_commit
        self._sessions: list[MemoryState] = []
        self._ids = itertools.count(1)

    def session(self) -> MemoryState:
        """Open a session."""
        with self.lock:
            callbacks = Callbacks("state callbacks", inline=self._inline)
            session = MemoryState(self, self.new_id(), callbacks)
            self._sessions.append(session)
            return session

    def suspend(self, session: MemoryState) -> None:
        """Cut a session off: its calls fail, and it hears of nothing, until `resume`."""
        with self.lock:
            if session.connection is ConnectionState.CONNECTED:
                session.become(ConnectionState.SUSPENDED)

    def resume(self, session: MemoryState) -> None:
        """Give a session that was cut off its connection back; it is told what it missed.

        Where it was ended meanwhile, it learns that, and goes on as a new one.
        """
        with self.lock:
            if session.connection is ConnectionState.SUSPENDED:
                session.reconnect()

    def expire(self, session: MemoryState) -> None:
        """End a session, as after a long silence; it learns that and goes on as a new one."""
        with self.lock:
            self.end_session(session)
            session.reconnect()

    def end_session(self, session: MemoryState) -> None:
        """End a session without its knowing; it hears of nothing from now on.

        It learns that by its next call, which fails (`OutcomeUnknownError` from one that writes,
        `StateUnavailableError` from one that reads), or by `resume` or `expire`, and goes on as a
        new one.
        """
        with self.lock:
            if not session.ended:
                session.ended = True
                self._forget_nodes(session)

    def lose_answer(self, session: MemoryState, *, applied: bool) -> None:
        """Have a session's next write fail with `OutcomeUnknownError`, and cut it off with that.

        Parameters
        ----------
        session
            Whose.
        applied
            Whether the write is carried out before its answer is lost.
        """
        with self.lock:
            session.losing = Losing.ANSWER if applied else Losing.REQUEST

    def deliver(self, session: MemoryState | None = None) -> None:
        """Run the callbacks that are queued, of one session or of all, and what they queue.

        Each session's run in the order in which their reasons happened, the sessions' in that in
        which they were opened. Does nothing unless the ensemble is inline, or in a callback.
        """
        if not self._inline:
            return
        chosen = self._sessions if session is None else [session]
        while any(each.deliver() for each in list(chosen)):
            pass

    # Sessions call these, under the lock.

    def new_id(self) -> int:
        """Return the id of a session that begins."""
        return next(self._ids)

    def commit(
        self, session: MemoryState, operations: Sequence[Operation], events: list[Event]
    ) -> None:
        """Tell what a session's write did, if it did anything."""
        if not events:
            return
        if self._on_commit is not None:
            self._on_commit(self.tree.changes, session.session_id, operations)
        self._publish(events)

    def leave(self, session: MemoryState) -> None:
        """Forget a session that was closed."""
        self._forget_nodes(session)
        self._sessions.remove(session)

    def _forget_nodes(self, session: MemoryState) -> None:
        for path in self.tree.owned_by(session.session_id):
            self._publish(self.tree.delete(path))

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            for session in self._sessions:
                session.hear(event)
