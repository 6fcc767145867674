"""Which of the two engines a Pacemaker runs on: the compiled one, or plain Python."""

from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple

from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.server.connections.asyncio_channels import AsyncioChannels
from stormkeeper.pacemaker.server.connections.channels import Channels
from stormkeeper.pacemaker.server.store.pulse_index import PulseIndex

_MODULE: Final = "stormkeeper.pacemaker.server._compiled"


class Engine(NamedTuple):
    """A pulse index and channels that belong together.

    Connections that need asyncio (TLS) are served by `AsyncioChannels` whatever the engine.
    """

    #: For the metrics: ``compiled`` or ``interpreted``; over TLS the `description`.
    name: str
    #: For the log: the name, and why it is not the other one.
    description: str
    pulse_index: Callable[[], PulseIndex]
    #: Takes what every kind of `Channels` takes.
    channels: Callable[..., Channels]

    def over_tls(self) -> "Engine":
        """Return what runs where all connections need TLS: channels on asyncio, and so named."""
        if self.name == "interpreted":
            return self
        told = "interpreted (TLS is served in plain Python)"
        return self._replace(name=told, description=told, channels=AsyncioChannels)


def load(choice: str) -> Engine:
    """Return the engine that ``pacemaker.engine`` asks for.

    Parameters
    ----------
    choice
        ``compiled``, ``interpreted``, or ``auto``: the compiled one where it was built.

    Raises
    ------
    ConfigError
        If the compiled one is asked for, and is not there or cannot be loaded.
    """
    if choice == "interpreted":
        return _interpreted("as pacemaker.engine says")
    try:
        compiled = import_module(_MODULE)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == _MODULE
        reason = (
            "no C compiler was there when stormkeeper was installed"
            if is_absent
            else f"the compiled module cannot be loaded: {error}"
        )
        if choice == "compiled":
            raise ConfigError(
                f"pacemaker.engine: compiled cannot be had: {reason}; install a C compiler and"
                " Python's headers (Debian: apt-get install gcc python3-dev), then stormkeeper"
                " anew, or set auto"
            ) from error
        return _interpreted(reason)
    return Engine("compiled", "compiled", compiled.PulseIndex, compiled.EpollChannels)


def _interpreted(reason: str) -> Engine:
    return Engine("interpreted", f"interpreted ({reason})", PulseIndex, AsyncioChannels)
