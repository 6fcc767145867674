"""Pages over HTTP from a thread of their own, for daemons that have no event loop."""

import asyncio
import socket
import threading
from types import MappingProxyType, TracebackType
from typing import Final, Self

from stormkeeper.daemon.http import HttpEndpoint, Pages

#: Seconds for the thread to begin, and to end.
_PATIENCE: Final = 5.0


class HttpThread:
    """Serves pages as `HttpEndpoint` does, in a thread of its own, while it is entered.

    Parameters
    ----------
    listener, pages, queries
        As for `HttpEndpoint`. The pages are made in that thread.
    """

    def __init__(
        self, listener: socket.socket, pages: Pages, queries: Pages = MappingProxyType({})
    ) -> None:
        self._listener = listener
        self._pages = pages
        self._queries = queries
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        endpoints: list[HttpEndpoint] = []
        # An endpoint belongs to the loop that runs.
        self._loop.call_soon(
            lambda: endpoints.append(HttpEndpoint(self._listener, self._pages, self._queries))
        )
        try:
            self._loop.run_forever()
            for endpoint in endpoints:
                endpoint.close()
            self._loop.run_until_complete(asyncio.sleep(0))
        finally:
            self._loop.close()
