"""Storm's operations on znodes, each with as few requests as possible.

Paths are whole paths; deadlines are monotonic; errors are those of `EnsembleConnection.call`. After
another session's change the operation looks again.
"""

from collections.abc import Sequence
from typing import Any

from kazoo.protocol.states import ZnodeStat

from stormkeeper import paths
from stormkeeper.errors import (
    AccessDeniedError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
    TransactionError,
    UnsupportedByServerError,
)
from stormkeeper.state.storage import DIRECTORY, Create, Delete, Operation
from stormkeeper.state.zookeeper import requests
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.requests import AccessLists, Request, Watcher

#: One lost race is rare: after so many, the node is made and deleted in a loop.
ROUNDS = 20


class Tree:
    """Reads and writes znodes; `acl` gives the ACLs of new nodes."""

    def __init__(self, connection: EnsembleConnection, acl: AccessLists) -> None:
        self._connection = connection
        self._acl = acl

    def read(
        self, path: str, deadline: float, watcher: Watcher | None = None
    ) -> tuple[bytes, ZnodeStat]:
        """Return value and stat; `NoNodeError`, and no watch, if absent."""
        data, stat = self._read(requests.get(path, watcher), deadline)
        return data or b"", stat

    def stat(self, path: str, deadline: float, watcher: Watcher | None = None) -> ZnodeStat | None:
        """Return a node's stat; leaves a watch also if absent."""
        stat: ZnodeStat | None = self._read(requests.exists(path, watcher), deadline)
        return stat

    def exists(self, path: str, deadline: float) -> bool:
        """Return whether the node exists, readable or not."""
        return self._connection.repeated(lambda: self._is_there(path, deadline), deadline)

    def children(self, path: str, deadline: float, watcher: Watcher | None = None) -> list[str]:
        """Return sorted names, as `read`."""
        return sorted(self._read(requests.children(path, watcher), deadline))

    def read_many(
        self,
        nodes: Sequence[str],
        deadline: float,
        watcher: Watcher | None = None,
        *,
        watch_absent: bool = True,
    ) -> list[tuple[bytes, ZnodeStat] | None]:
        """Return values and stats, None if absent; leaves watches on all, or on present nodes."""
        return self._connection.repeated(
            lambda: self._read_many(nodes, deadline, watcher, watch_absent), deadline
        )

    def stat_many(
        self, nodes: Sequence[str], deadline: float, watcher: Watcher | None = None
    ) -> list[ZnodeStat | None]:
        """Return stats, None if absent; leaves watches on all."""
        asked = [requests.exists(node, watcher) for node in nodes]
        return self._connection.repeated(lambda: self._gather(asked, deadline), deadline)

    def children_many(
        self, nodes: Sequence[str], deadline: float, watcher: Watcher | None = None
    ) -> list[list[str] | None]:
        """Return sorted names, None if absent; leaves watches on present nodes."""
        return self._connection.repeated(
            lambda: self._children_many(nodes, deadline, watcher), deadline
        )

    def watch_tree(self, path: str, deadline: float) -> bool:
        """Leave a watch that stays, at and below `path`; return False if the server has none."""
        connection = self._connection
        request = requests.watch_tree(path)
        try:
            connection.repeated(lambda: connection.call(request, deadline), deadline)
        except UnsupportedByServerError:
            return False
        return True

    def sync(self, path: str, deadline: float) -> None:
        self._read(requests.sync(path), deadline)

    def make_directory(self, path: str, deadline: float, workers_digest: str | None = None) -> None:
        """Make a directory if absent, with empty ancestors."""
        connection = self._connection
        directory = Create(path, DIRECTORY, workers_digest=workers_digest)
        connection.repeated(lambda: self._make(directory, deadline), deadline)

    def put(
        self, path: str, data: bytes, deadline: float, workers_digest: str | None = None
    ) -> None:
        """Set a node's value; make the node and ancestors. Not repeated."""
        for _ in range(ROUNDS):
            if self._set(path, data, deadline):
                return
            try:
                self._create(Create(path, data, workers_digest=workers_digest), deadline)
            except NodeExistsError:
                continue
            except NoNodeError:
                self.make_directory(paths.parent(path), deadline, workers_digest)
            else:
                return
        raise _contended("write", path)

    def put_ephemeral(self, path: str, data: bytes, deadline: float) -> None:
        """Make an ephemeral node, replacing any node there."""
        connection = self._connection
        connection.repeated(lambda: self._put_ephemeral(path, data, deadline), deadline)

    def recreate_ephemeral(self, path: str, data: bytes, deadline: float) -> None:
        """Make an ephemeral node of a former session again.

        Raises `NodeExistsError` if the path has another session's node or a persistent node.
        """
        connection = self._connection
        connection.repeated(
            lambda: self._put_ephemeral(path, data, deadline, over_others=False), deadline
        )

    def create_sequential(self, path: str, data: bytes, deadline: float) -> str:
        """Make an ephemeral node with a number. Not repeated."""
        for _ in range(ROUNDS):
            try:
                return self._create(Create(path, data, ephemeral=True, sequential=True), deadline)
            except NoNodeError:
                self.make_directory(paths.parent(path), deadline)
        raise _contended("create", path)

    def delete(self, path: str, deadline: float) -> None:
        connection = self._connection
        for earlier in range(ROUNDS):
            try:
                if connection.repeated(lambda: self._delete_round(path, deadline), deadline):
                    return
            except OutcomeUnknownError:
                raise
            except StateUnavailableError as error:
                if not earlier:
                    raise
                raise _partly(error) from error
        raise _contended("delete", path)

    def _read_many(
        self, nodes: Sequence[str], deadline: float, watcher: Watcher | None, watch_absent: bool
    ) -> list[tuple[bytes, ZnodeStat] | None]:
        found: list[tuple[bytes, ZnodeStat] | None] = [None] * len(nodes)
        left: Sequence[int] = range(len(nodes))
        for _ in range(ROUNDS):
            answers = self._gather([requests.get(nodes[i], watcher) for i in left], deadline)
            absent = []
            for index, answer in zip(left, answers, strict=True):
                if isinstance(answer, NoNodeError):
                    absent.append(index)
                else:
                    data, stat = answer
                    found[index] = data or b"", stat
            if watcher is None or not watch_absent or not absent:
                return found
            # ZooKeeper leaves no watch on a read of an absent node.
            stats = self._gather([requests.exists(nodes[i], watcher) for i in absent], deadline)
            left = [i for i, stat in zip(absent, stats, strict=True) if stat is not None]
            if not left:
                return found
        raise _contended("read", nodes[left[0]])

    def _children_many(
        self, nodes: Sequence[str], deadline: float, watcher: Watcher | None = None
    ) -> list[list[str] | None]:
        answers = self._gather([requests.children(node, watcher) for node in nodes], deadline)
        return [None if isinstance(one, NoNodeError) else sorted(one) for one in answers]

    def _put_ephemeral(
        self, path: str, data: bytes, deadline: float, *, over_others: bool = True
    ) -> None:
        ours = self._connection.session_ids
        for _ in range(ROUNDS):
            stat = self._look_at(path, deadline)
            # At every look, as another session may take the path between two.
            if stat is not None and not over_others and stat.ephemeralOwner not in ours:
                by_whom = f"session {stat.ephemeralOwner:#x}" if stat.ephemeralOwner else "others"
                raise NodeExistsError(
                    f"cannot create {path} again: {by_whom} made it meanwhile, and has it"
                )
            try:
                if stat is None:
                    self._create(Create(path, data, ephemeral=True), deadline)
                elif stat.ephemeralOwner == self._connection.session_id:
                    if not self._set(path, data, deadline):
                        continue
                else:
                    self._replace(path, data, stat.version, deadline)
            except NoNodeError:
                if stat is None:
                    self._make(Create(paths.parent(path), DIRECTORY), deadline)
            except (NodeExistsError, BadVersionError):
                continue
            else:
                return
        raise _contended("write", path)

    def _replace(self, path: str, data: bytes, version: int, deadline: float) -> None:
        replacing: list[Operation] = [
            Delete(path, version),
            Create(path, data, ephemeral=True),
        ]
        try:
            self._connection.commit(replacing, self._acl, deadline)
        except TransactionError as error:
            raise error.reason from error

    def _make(self, node: Create, deadline: float) -> None:
        for _ in range(ROUNDS):
            if self._is_there(node.path, deadline):
                return
            try:
                self._create(node, deadline)
            except NodeExistsError:
                return
            except NoNodeError:
                self._make(node._replace(path=paths.parent(node.path), data=b""), deadline)
            else:
                return
        raise _contended("create", node.path)

    def _is_there(self, path: str, deadline: float) -> bool:
        try:
            return self._look_at(path, deadline) is not None
        except AccessDeniedError:
            # Access can be denied only to an existing node.
            return True

    def _look_at(self, path: str, deadline: float) -> ZnodeStat | None:
        stat: ZnodeStat | None = self._connection.call(requests.exists(path), deadline)
        return stat

    def _set(self, path: str, data: bytes, deadline: float) -> bool:
        try:
            self._connection.call(requests.set_data(path, data), deadline)
        except NoNodeError:
            return False
        return True

    def _create(self, node: Create, deadline: float) -> str:
        answers = self._connection.call(requests.create(node, self._acl), deadline)
        try:
            (made,) = requests.results([node], answers, self._connection.translated)
        except TransactionError as error:
            raise error.reason from error
        return str(made)

    def _delete_round(self, path: str, deadline: float) -> bool:
        """Delete the present nodes; return whether all are gone."""
        levels = [[path]]
        while levels[-1]:
            below = []
            listed = zip(levels[-1], self._children_many(levels[-1], deadline), strict=True)
            for parent, names in listed:
                below += [f"{parent.rstrip('/')}/{name}" for name in names or ()]
            levels.append(sorted(below))
        answers: list[Any] = []
        try:
            for level in reversed(levels):
                answers = self._connection.gather(list(map(requests.delete, level)), deadline)
                for answer in answers:
                    if isinstance(answer, StateError) and not isinstance(
                        answer, NoNodeError | NotEmptyError
                    ):
                        raise answer
        except OutcomeUnknownError:
            raise
        except StateUnavailableError as error:
            raise _partly(error) from error
        return not isinstance(answers[0], NotEmptyError)

    def _gather(self, asked: Sequence[Request], deadline: float) -> list[Any]:
        answers = self._connection.gather(asked, deadline)
        for answer in answers:
            if isinstance(answer, StateError) and not isinstance(answer, NoNodeError):
                raise answer
        return answers

    def _read(self, request: Request, deadline: float) -> Any:
        connection = self._connection
        return connection.repeated(lambda: connection.call(request, deadline), deadline)


def _partly(error: StateUnavailableError) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"{error}; a part may be deleted already")


def _contended(what: str, path: str) -> StateError:
    return StateError(
        f"cannot {what} {path}: other sessions made and deleted it or its parents {ROUNDS} times"
        " meanwhile"
    )
