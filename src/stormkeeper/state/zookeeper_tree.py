"""Storm's operations on znodes, each made of as few requests as it takes.

Paths here are whole paths, with ``storm.zookeeper.root``. Deadlines are times on the monotonic
clock. Errors are those of `stormkeeper.state.zookeeper_connection.Connection.call`; what others do
to the same nodes at the same time is not an error but a reason to look again, for a bounded number
of rounds.
"""

from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

from stormkeeper.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    StateError,
)
from stormkeeper.state import paths
from stormkeeper.state.storage import DIRECTORY
from stormkeeper.state.zookeeper_connection import Connection, Request

#: How often an operation starts over because others changed the nodes it works on. One lost race
#: is rare; as many as this in a row mean that somebody makes and deletes the node in a loop.
ROUNDS = 20

Watcher = Callable[[Any], None]


class Tree:
    """Reads and writes znodes through a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(
        self, path: str, deadline: float, watcher: Watcher | None = None
    ) -> tuple[bytes, ZnodeStat]:
        """Return a node's value and stat; a value that was never set is empty.

        Raises
        ------
        NoNodeError
            There is none; no watch is left then.
        """
        data, stat = self._read("read", path, lambda c: c.get_async(path, watcher), deadline)
        return data or b"", stat

    def stat(self, path: str, deadline: float, watcher: Watcher | None = None) -> ZnodeStat | None:
        """Return a node's stat, None when there is no node; a watch is left either way."""
        return self._read("look at", path, lambda c: c.exists_async(path, watcher), deadline)

    def children(
        self, path: str, deadline: float, watcher: Watcher | None = None
    ) -> tuple[list[str], ZnodeStat]:
        """Return the sorted names of a node's children, and its stat.

        Raises
        ------
        NoNodeError
            There is none; no watch is left then.
        """
        names, stat = self._read(
            "list", path, lambda c: c.get_children_async(path, watcher, True), deadline
        )
        return sorted(names), stat

    def sync(self, path: str, deadline: float) -> None:
        """Have the server catch up with its leader."""
        self._read("sync", path, lambda c: c.sync_async(path), deadline)

    def make_directory(self, path: str, deadline: float) -> None:
        """Make a node that holds `DIRECTORY`, unless there is one, and empty ancestors."""
        connection = self._connection
        connection.repeated(lambda: self._make(path, DIRECTORY, deadline), deadline)

    def put(self, path: str, data: bytes, deadline: float) -> None:
        """Set a node's value; make it, and its ancestors, if it is absent. Not repeated."""
        for _ in range(ROUNDS):
            if self._set(path, data, deadline):
                return
            try:
                self._create(path, data, deadline)
            except NodeExistsError:
                continue
            except NoNodeError:
                self.make_directory(paths.parent(path), deadline)
            else:
                return
        raise _contended("write", path)

    def put_ephemeral(self, path: str, data: bytes, deadline: float) -> None:
        """Make an ephemeral node of the session, in the place of whatever is there."""
        connection = self._connection
        connection.repeated(lambda: self._put_ephemeral(path, data, deadline), deadline)

    def recreate_ephemeral(self, path: str, data: bytes, deadline: float) -> None:
        """Make an ephemeral node of a former session of ours again in the new one.

        Raises
        ------
        NodeExistsError
            It is none of ours: another session has taken the path by now, and is left with it.
        """

        def recreate() -> None:
            stat = self._look_at(path, deadline)
            if stat is not None and stat.ephemeralOwner not in self._connection.session_ids:
                raise NodeExistsError(f"cannot create {path} again: another session took it")
            self._put_ephemeral(path, data, deadline)

        self._connection.repeated(recreate, deadline)

    def create_sequential(self, path: str, data: bytes, deadline: float) -> str:
        """Make an ephemeral node named by `path` and a number; return its path. Not repeated."""

        def create(client: KazooClient) -> Any:
            return client.create_async(path, data, ephemeral=True, sequence=True)

        for _ in range(ROUNDS):
            try:
                return str(self._call("create", path, create, deadline, data))
            except NoNodeError:
                self.make_directory(paths.parent(path), deadline)
        raise _contended("create", path)

    def delete(self, path: str, deadline: float) -> None:
        """Delete a node and all below it, and what others add meanwhile."""
        connection = self._connection
        for _ in range(ROUNDS):
            if connection.repeated(lambda: self._delete_what_is_there(path, deadline), deadline):
                return
        raise _contended("delete", path)

    def _put_ephemeral(self, path: str, data: bytes, deadline: float) -> None:
        for _ in range(ROUNDS):
            stat = self._look_at(path, deadline)
            try:
                if stat is None:
                    self._create(path, data, deadline, ephemeral=True)
                elif stat.ephemeralOwner == self._connection.session_id:
                    if not self._set(path, data, deadline):
                        continue
                else:
                    self._replace(path, data, stat.version, deadline)
            except NoNodeError:
                if stat is None:
                    self._make(paths.parent(path), DIRECTORY, deadline)
            except (NodeExistsError, BadVersionError):
                continue
            else:
                return
        raise _contended("write", path)

    def _replace(self, path: str, data: bytes, version: int, deadline: float) -> None:
        """Put an ephemeral node of ours in another's place, in one step."""

        def replace(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.delete(path, version)
            transaction.create(path, data, ephemeral=True)
            return transaction.commit_async()

        self._call("replace", path, replace, deadline, data)

    def _make(self, path: str, data: bytes, deadline: float) -> None:
        for _ in range(ROUNDS):
            if self._look_at(path, deadline) is not None:
                return
            try:
                self._create(path, data, deadline)
            except NodeExistsError:
                return
            except NoNodeError:
                self._make(paths.parent(path), b"", deadline)
            else:
                return
        raise _contended("create", path)

    def _look_at(self, path: str, deadline: float) -> ZnodeStat | None:
        return self._call("look at", path, lambda c: c.exists_async(path), deadline)

    def _set(self, path: str, data: bytes, deadline: float) -> bool:
        try:
            self._call("write", path, lambda c: c.set_async(path, data), deadline, data)
        except NoNodeError:
            return False
        return True

    def _create(self, path: str, data: bytes, deadline: float, *, ephemeral: bool = False) -> None:
        def create(client: KazooClient) -> Any:
            return client.create_async(path, data, ephemeral=ephemeral)

        self._call("create", path, create, deadline, data)

    def _delete_what_is_there(self, path: str, deadline: float) -> bool:
        """Delete the nodes that are there now, the deepest first; returns whether it is gone."""
        levels = [[path]]
        while levels[-1]:
            answers = self._connection.gather(
                "list", ((p, _children_request(p)) for p in levels[-1]), deadline
            )
            below = []
            for parent, answer in zip(levels[-1], answers, strict=True):
                if isinstance(answer, NoNodeError):
                    continue
                if isinstance(answer, StateError):
                    raise answer
                below += [f"{parent.rstrip('/')}/{name}" for name in answer]
            levels.append(sorted(below))
        for level in reversed(levels):
            answers = self._connection.gather(
                "delete", ((p, _delete_request(p)) for p in level), deadline
            )
            for answer in answers:
                if isinstance(answer, StateError) and not isinstance(
                    answer, NoNodeError | NotEmptyError
                ):
                    raise answer
        return not isinstance(answers[0], NotEmptyError)

    def _read(self, what: str, path: str, request: Request, deadline: float) -> Any:
        connection = self._connection
        return connection.repeated(lambda: connection.call(what, path, request, deadline), deadline)

    def _call(
        self,
        what: str,
        path: str,
        request: Request,
        deadline: float,
        data: bytes = b"",
    ) -> Any:
        return self._connection.call(what, path, request, deadline, size=len(data))


def _children_request(path: str) -> Request:
    return lambda client: client.get_children_async(path)


def _delete_request(path: str) -> Request:
    return lambda client: client.delete_async(path)


def _contended(what: str, path: str) -> StateError:
    return StateError(
        f"cannot {what} {path}: others made and deleted it or its parents {ROUNDS} times meanwhile"
    )
