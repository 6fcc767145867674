"""One machine's logs, as its supervisor has them over HTTP."""

from __future__ import annotations

import http.client
from contextlib import closing
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import msgspec

from stormkeeper.conf.address import Address
from stormkeeper.errors import LogsError, RpcUnavailableError
from stormkeeper.rpc.dialing import connect, in_words

#: Seconds for a connection, so that a machine that is off does not hold up the others for long.
_CONNECTING: Final = 3.0
#: Seconds for each wait for bytes of an answer.
_PATIENCE: Final = 10.0
#: Bytes of an answer: more than any supervisor sends.
_MOST_BYTES: Final = 16 * 1024 * 1024

#: Answers by which the supervisor says that the file is gone or is another one.
_CHANGED: Final = frozenset(
    (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
)


class LogFile(msgspec.Struct, frozen=True):
    """A file as it was when it was listed."""

    #: ``ID/PORT/NAME``.
    file: str
    port: int
    #: The same as long as it is this file, whatever its name.
    identity: str
    #: Its bytes.
    size: int
    #: When it was last written to, in seconds since 1970.
    modified: float


class LogServer:
    """Asks a supervisor, by a connection for each question.

    Parameters
    ----------
    address
        Where its HTTP listens.
    """

    def __init__(self, address: Address) -> None:
        self.address = address

    def files(self, storm_id: str) -> list[LogFile]:
        """Return the logs of a topology's workers on that machine.

        Those of a slot begin with the one that was written to the longest ago, and end with that
        which is written to now.

        Raises
        ------
        LogsError
            They cannot be had from there.
        """
        asked = urlencode({"topoId": storm_id, "details": "yes"})
        status, body = self._ask(f"/api/v1/listLogs?{asked}")
        if status != HTTPStatus.OK:
            raise self._refused(status, body)
        try:
            return msgspec.json.decode(body, type=list[LogFile])
        except msgspec.DecodeError as error:
            raise LogsError(f"{self.address}: this is no supervisor of Stormkeeper's") from error

    def read(self, file: LogFile, start: int, length: int) -> bytes | None:
        """Return bytes of a file, fewer than `length` where the answer would be too long.

        None: the file of that name is another one by now, or gone: list them again.

        Raises
        ------
        LogsError
            It cannot be had from there.
        """
        asked = {"file": file.file, "start": start, "length": length, "identity": file.identity}
        status, body = self._ask(f"/api/v1/log?{urlencode(asked)}")
        if status in _CHANGED:
            return None
        if status != HTTPStatus.OK:
            raise self._refused(status, body)
        return body

    def _ask(self, path: str) -> tuple[int, bytes]:
        try:
            try:
                return self._answer(path)
            except ConnectionResetError:
                # Its place went to another client: the newest ones are served.
                return self._answer(path)
        except RpcUnavailableError as error:
            raise LogsError(str(error)) from error
        except OSError as error:
            raise LogsError(f"{self.address}: {in_words(error)}") from error
        except http.client.HTTPException as error:
            raise LogsError(f"{self.address}: this is no HTTP: {error!r}") from error

    def _answer(self, path: str) -> tuple[int, bytes]:
        client = http.client.HTTPConnection(self.address.host, self.address.port)
        with closing(client):
            client.sock = connect(self.address, _CONNECTING)
            client.sock.settimeout(_PATIENCE)
            client.request("GET", path, headers={"Connection": "close"})
            answer = client.getresponse()
            return answer.status, answer.read(_MOST_BYTES)

    def _refused(self, status: int, body: bytes) -> LogsError:
        said = body[:200].decode(errors="replace").strip()
        return LogsError(f"{self.address}: {said or f'HTTP status {status}'}")
