"""A supervisor's pages with the logs of a folder, and the log of a worker in it."""

from contextlib import contextmanager

from stormkeeper.daemon.http import HttpThread
from stormkeeper.daemon.sockets import address_of, listen
from stormkeeper.supervisor.http_pages import LogFiles, log_queries
from stormkeeper.worker.driver_log import rotate


@contextmanager
def serving(folder, port=0):
    """Yield the port where a folder's logs are served."""
    listener = listen("127.0.0.1", port, keys="none", backlog=16)
    with HttpThread(listener, {}, log_queries(LogFiles(folder))):
        yield int(address_of(listener).rpartition(":")[2])


class Log:
    """The log of a worker, as that writes it and as it is renamed."""

    def __init__(self, folder, storm_id, port):
        self.path = folder / storm_id / str(port) / "worker.log"
        self.path.parent.mkdir(parents=True)
        self._renamed = 0

    def write(self, *lines):
        """Write lines."""
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def put_aside(self):
        """Have what is old in a packed file, as our workers do it."""
        rotate(self.path, 9)

    def rename(self):
        """Begin a new one."""
        self._renamed += 1
        self.path.rename(self.path.with_name(f"worker.log.{self._renamed}"))
        self.path.touch()
