"""A Pacemaker in an event loop: parts, timers, engine, and reloads of the configuration."""

import asyncio
import hashlib
import logging
import resource
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import stormkeeper
from stormkeeper.conf import Conf
from stormkeeper.conf.keys import is_secret
from stormkeeper.daemon.logs import LineBudget, counted
from stormkeeper.daemon.sockets import AT_ONCE, AT_ONCE_OVER_TLS, Acceptor, Admission
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.server import server_tls
from stormkeeper.pacemaker.server.asyncio_channels import AsyncioChannels
from stormkeeper.pacemaker.server.channels import RESET_BY_CLIENT
from stormkeeper.pacemaker.server.client_session import ClientSession, ClientSessions, Policy
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.request_handler import RequestHandler, ServerDescription
from stormkeeper.pacemaker.server.server_status import (
    EventCounts,
    Horizon,
    ServerSnapshot,
    clock,
    recent_sizes,
    requests_by_verb,
)
from stormkeeper.pacemaker.server.store_limits import StoreLimits, memory_allowed
from stormkeeper.sasl.jaas import login_file
from stormkeeper.tls_files import Certificate

_log = logging.getLogger(__name__)

_MODULE: Final = "stormkeeper.pacemaker.server._compiled"


class PacemakerEngine(NamedTuple):
    """A pulse index with its channels; TLS always uses `AsyncioChannels`.

    The compiled classes are twins of the types, not subclasses.
    """

    #: For metrics: ``compiled`` or ``interpreted``, over TLS the `description`.
    name: str
    description: str
    pulse_index: Callable[[], PulseIndex]
    channels: Callable[..., AsyncioChannels]

    def over_tls(self) -> "PacemakerEngine":
        if self.name == "interpreted":
            return self
        name = "interpreted (TLS is served in plain Python)"
        return self._replace(name=name, description=name, channels=AsyncioChannels)


def load_engine(choice: str) -> PacemakerEngine:
    """Load the engine of ``pacemaker.engine``; ``auto`` prefers ``compiled``.

    Raises `ConfigError` if ``compiled`` cannot be loaded.
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
                f"pacemaker.engine: compiled is not available: {reason}; install a C compiler and"
                " Python's headers (Debian: apt-get install gcc python3-dev), then stormkeeper"
                " anew, or set auto"
            ) from error
        return _interpreted(reason)
    return PacemakerEngine("compiled", "compiled", compiled.PulseIndex, compiled.EpollChannels)


def _interpreted(reason: str) -> PacemakerEngine:
    return PacemakerEngine("interpreted", f"interpreted ({reason})", PulseIndex, AsyncioChannels)


#: Keys that a reload applies.
RELOADED: Final = frozenset(
    {
        "java.security.auth.login.config",
        "nimbus.daemon.user",
        "pacemaker.auth.writes",
        "pacemaker.childopts",
        "pacemaker.frame.timeout.secs",
        "pacemaker.handshake.timeout.secs",
        "pacemaker.kerberos.users",
        "pacemaker.max.connections",
        "pacemaker.max.connections.per.address",
        "pacemaker.output.timeout.secs",
        "pacemaker.path.max.bytes",
        "pacemaker.path.max.segments",
        "pacemaker.pulse.ttl.secs",
        "pacemaker.store.max.bytes",
        "pacemaker.tls.ca.file",
        "pacemaker.tls.certificate.file",
        "pacemaker.tls.client.auth",
        "pacemaker.tls.key.file",
        "pacemaker.tls.minimum.version",
        "task.heartbeat.frequency.secs",
    }
)

#: Keys that only a restart applies.
AT_START: Final = frozenset(
    {
        "pacemaker.auth.method",
        "pacemaker.bind.host",
        "pacemaker.engine",
        "pacemaker.metrics.bind.host",
        "pacemaker.metrics.port",
        "pacemaker.port",
        "pacemaker.thrift.message.size.max",
        "pacemaker.tls.enable",
    }
)

#: JVM options may hold secrets.
_HIDDEN: Final = frozenset({"pacemaker.childopts"})


@dataclass(frozen=True, slots=True)
class Reload:
    """A reloaded configuration, with the old values of the keys `AT_START`.

    `changes` apply now, `later` at the next start.
    """

    conf: Conf
    changes: tuple[str, ...]
    later: tuple[str, ...]

    def describe(self) -> str:
        if not self.later:
            return "; ".join(self.changes) or "nothing has changed"
        now = "; ".join(self.changes) or "no change applies now"
        return f"{now}; for a restart only: {'; '.join(self.later)}"


def compare_confs(old: Conf, new: Conf) -> Reload:
    return Reload(
        new.with_values({key: old[key] for key in AT_START}),
        tuple(_change(key, old, new) for key in sorted(RELOADED) if old[key] != new[key]),
        tuple(_change(key, old, new) for key in sorted(AT_START) if old[key] != new[key]),
    )


def hash_files(conf: Mapping[str, Any], keys: tuple[str, ...]) -> bytes:
    """Hash the files of some keys; an unreadable file counts as empty."""
    digest = hashlib.sha256()
    for key in keys:
        try:
            content = Path(conf[key]).read_bytes() if conf[key] else b""
        except OSError:
            content = b""
        digest.update(len(content).to_bytes(8) + content)
    return digest.digest()


def _change(key: str, old: Conf, new: Conf) -> str:
    if key in _HIDDEN or is_secret(key):
        return key
    return f"{key} = {_shown(new[key])} (was {_shown(old[key])})"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


_TICK: Final = 1.0
#: Seconds between stretches of expiry, which then take a sixth of a core.
_EXPIRY_REST: Final = 0.01
#: Seconds for clients to read answers when the server stops.
DRAIN: Final = 2.0
#: Divisor of the memory for unanswered requests and unread answers.
_BUFFERED_SHARE: Final = 8
#: Kept for the server, for example to read files at a reload.
_OWN_DESCRIPTORS: Final = 64
#: Fewer are too few to serve a cluster.
_FEW_DESCRIPTORS: Final = 1_000
_LIMITS: Final = ("pacemaker.max.connections", "pacemaker.max.connections.per.address")
#: Seconds per log line about refused connections, for each cause.
_TURNED_AWAY_SECONDS: Final = 10.0


class PacemakerServer:
    """A Pacemaker in an asyncio loop, from `start` to `stop`; raises `ConfigError`."""

    def __init__(self, conf: Conf) -> None:
        self.conf = conf
        engine = load_engine(conf["pacemaker.engine"])
        self.events = EventCounts()
        policy = Policy.from_conf(conf)
        self._tls = server_tls.server_context(conf)
        self.engine: PacemakerEngine = engine if self._tls is None else engine.over_tls()
        self._tls_files = hash_files(conf, server_tls.FILES)
        index = self.engine.pulse_index()
        self.store = PulseStore(index, uuid.uuid4().hex, clock, StoreLimits.of(conf))
        max_size: int = conf["pacemaker.thrift.message.size.max"]
        handler = RequestHandler(self.store, self._status, max_size=max_size)
        self.sessions = ClientSessions(handler, policy, self.events, clock)
        self.admission = Admission(*_admitted(conf), _LIMITS)
        self.channels = self.engine.channels(
            index,
            max_size=max_size,
            clock=clock,
            frame_timeout=conf["pacemaker.frame.timeout.secs"],
            output_timeout=conf["pacemaker.output.timeout.secs"],
            on_closed=self.sessions.ended,
            on_freed=self._freed,
        )
        self.channels.max_buffered = memory_allowed() // _BUFFERED_SHARE
        self.horizon = Horizon(clock)
        self.started = self.swept = clock()
        self.is_serving = False
        self._is_expiring = False
        self._lost_pulses = 0
        self._turned_away = LineBudget(1, _TURNED_AWAY_SECONDS)

    def start(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        at_once = AT_ONCE if self._tls is None else AT_ONCE_OVER_TLS
        self._acceptor = Acceptor(listener, self._welcome, self._on_shortage, at_once)
        self.channels.attach(self._loop)
        self._acceptor.start()
        self.horizon.restart()  # no pulse was received until now
        self.is_serving = True
        self._tick()

    async def stop(self) -> int:
        """Drain, and close all connections; return how many clients did not read."""
        self.is_serving = False
        self._acceptor.stop()
        self.channels.drain()
        deadline = self._loop.time() + DRAIN
        while len(self.channels) and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        deaf = len(self.sessions)
        self.channels.abort()
        await asyncio.sleep(0)
        self.channels.detach(self._loop)
        return deaf

    @property
    def certificate(self) -> Certificate | None:
        """None without TLS, or if the file cannot be parsed."""
        return None if self._tls is None else self._tls.certificate

    def snapshot(self) -> ServerSnapshot:
        """Return the state, in some tenths of a millisecond."""
        vouched = self.vouched()
        index, conf, now = self.store.index, self.conf, clock()
        uptime = now - self.started
        counts = self.channels.counters()
        certificate = self.certificate
        bounds, latency_counts, latency_sum = self.channels.latency()
        return ServerSnapshot(
            instance=self.store.instance,
            version=stormkeeper.__version__,
            engine=self.engine.name,
            auth_method=self.sessions.policy.method,
            is_serving=self.is_serving,
            swept_ago=now - self.swept,
            uptime=uptime,
            horizon=min(vouched, uptime),
            heartbeat_period=conf["task.heartbeat.frequency.secs"],
            pulse_ttl=conf["pacemaker.pulse.ttl.secs"],
            revision=index.revision,
            keys=index.keys,
            tombstones=index.tombstones,
            pulses_received=index.pulses_received,
            pulses_expired=self.store.expiry.expired,
            bytes_held=index.bytes_held,
            max_bytes=index.max_bytes,
            recent_sizes=recent_sizes(index),
            requests=requests_by_verb(counts, self.sessions.handler.asked),
            bytes_in=counts["bytes_in"],
            bytes_out=counts["bytes_out"],
            latency_bounds=bounds,
            latency_counts=latency_counts,
            latency_sum=latency_sum,
            connections=len(self.sessions),
            max_connections=self.admission.most,
            certificate_ends=None if certificate is None else certificate.ends.timestamp(),
            events=self.events,
        )

    def describe(self) -> str:
        policy, conf = self.sessions.policy, self.conf
        reads = "all may read" if policy.everyone_may_read else f"{policy.method} to read"
        writes = "all may write" if policy.everyone_may_write else f"{policy.method} to write"
        encryption = "no TLS"
        if self._tls is not None:
            encryption = (
                f"{conf['pacemaker.tls.minimum.version']} or newer{_ending(self.certificate)},"
                f" client certificates {conf['pacemaker.tls.client.auth']}"
            )
        return (
            f"engine: {self.engine.description}; {reads}, {writes}; {encryption};"
            f" at most {counted(self.admission.most, 'connection')}"
        )

    def shortage(self) -> str | None:
        """Return a warning if open files limit the connections."""
        allowed = _descriptors()
        wanted = self.conf["pacemaker.max.connections"]
        if wanted:
            if wanted <= self.admission.most:
                return None
            beside = f", and not the {wanted} of pacemaker.max.connections"
        elif allowed >= _FEW_DESCRIPTORS:
            return None
        else:
            beside = ""
        return (
            f"at most {counted(self.admission.most, 'connection')} at a time{beside}: this process"
            f" may have {allowed} open files, of which {_OWN_DESCRIPTORS} are kept; raise"
            " LimitNOFILE= in the unit, or the hard limit of open files (ulimit -Hn)"
        )

    def reload(self, new: Conf) -> Reload:
        """Apply another configuration, except the keys `AT_START`.

        A `ConfigError` changes nothing.
        """
        change = compare_confs(self.conf, new)
        conf, changes = change.conf, list(change.changes)
        policy = Policy.from_conf(conf)
        context = server_tls.server_context(conf)
        tls_files = hash_files(conf, server_tls.FILES)
        limits = StoreLimits.of(conf)
        file = login_file(conf)
        if policy.method != "NONE" and file != login_file(self.conf):
            changes.append(f"the JAAS file is {file}")
        # Nothing below fails.
        kept = self.conf["pacemaker.pulse.ttl.secs"]
        if kept and not 0 < conf["pacemaker.pulse.ttl.secs"] <= kept:
            self.horizon.record_dropped(kept)
        if policy.fingerprint != self.sessions.policy.fingerprint:
            changes.append("users and passwords")
        if policy.keytab != self.sessions.policy.keytab:
            changes.append("the keytab")
        if tls_files != self._tls_files:
            certificate = None if context is None else context.certificate
            changes.append(f"certificates and keys{_ending(certificate)}")
        losers = self.sessions.replace_policy(policy)
        if losers:
            changes.append(f"{counted(losers, 'connection')} to begin anew")
            self.channels.sweep(clock())  # compiled channels still have the old permissions
        self.conf, self._tls, self._tls_files = conf, context, tls_files
        self.store.set_limits(limits)
        self.admission.most, self.admission.most_per_address = _admitted(conf)
        self.channels.frame_timeout = conf["pacemaker.frame.timeout.secs"]
        self.channels.output_timeout = conf["pacemaker.output.timeout.secs"]
        return Reload(conf, tuple(changes), change.later)

    def _welcome(self, connection: socket.socket, address: str, port: int) -> None:
        refusal = self.admission.refuses(address, len(self.channels))
        if refusal is not None:
            connection.close()
            self._turn_away(address, *refusal)
            return
        session = self.sessions.open(address, port)
        self.admission.entered(address)
        try:
            # Only the channels on asyncio know TLS.
            tls = () if self._tls is None else (self._tls, self.sessions.policy.handshake_timeout)
            self.channels.adopt(connection, session, clock(), *tls)
        except OSError:
            self.sessions.ended(session, "", RESET_BY_CLIENT)
            self._freed(session)
            raise
        self.events.accepted += 1

    def _on_shortage(self) -> None:
        # Clients that cannot connect cannot beat.
        self.horizon.restart()
        self.events.turned_away["descriptors"] += 1

    def _turn_away(self, address: str, cause: str, reason: str) -> None:
        self.events.turned_away[cause] += 1
        left_out = self._turned_away.spend(cause, clock())
        if left_out is not None:
            more = f"; and {left_out} more for that reason since" if left_out else ""
            extra = {"peer": address, "cause": cause}
            _log.warning("turned away %s: %s%s", address, reason, more, extra=extra)

    def _freed(self, session: ClientSession) -> None:
        self.admission.left(session.address)

    def _tick(self) -> None:
        self._loop.call_later(_TICK, self._tick)
        self.swept = clock()
        self.observe()
        self.channels.sweep(self.swept)
        if not self._is_expiring:
            self._expire(0)

    def _expire(self, expired: int) -> None:
        # First, so that a failure does not stop expiry.
        self._is_expiring = False
        # Before that time without a stop, the next pulse may not have arrived.
        ttl: float = self.conf["pacemaker.pulse.ttl.secs"]
        now = self.store.expiry.expire(ttl if ttl <= self.horizon.seconds() else 0)
        self._is_expiring = now > 0
        if now:
            self._loop.call_later(_EXPIRY_REST, self._expire, expired + now)
        elif expired:
            _log.info("%s expired, %d held", counted(expired, "pulse"), self.store.index.keys)

    def observe(self) -> None:
        """Update the horizon with stops and lost pulses."""
        silence = self.horizon.observe()
        if silence is not None:
            _log.warning("was stopped for %.1f s: pulses sent meanwhile may be lost", silence)
        lost_pulses = self.events.lost_pulses()
        if lost_pulses != self._lost_pulses:
            self._lost_pulses = lost_pulses
            self.horizon.record_loss()

    def vouched(self) -> float:
        """Return `Horizon.vouched` as of now."""
        # After a suspension a request may precede the timer.
        self.observe()
        return self.horizon.vouched(self.conf["pacemaker.pulse.ttl.secs"])

    def _status(self) -> ServerDescription:
        return ServerDescription(
            instance=self.store.instance,
            uptime_ms=int((clock() - self.started) * 1000),
            horizon_ms=int(self.vouched() * 1000),
            version=stormkeeper.__version__,
            revision=self.store.index.revision,
            keys=self.store.index.keys,
            pulses_received=self.store.index.pulses_received,
            connections=len(self.sessions),
        )


def _ending(certificate: Certificate | None) -> str:
    return (
        "" if certificate is None else f", certificate until {server_tls.shown(certificate.ends)}"
    )


def _descriptors() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _admitted(conf: Conf) -> tuple[int, int]:
    possible = max(1, _descriptors() - _OWN_DESCRIPTORS)
    most = conf["pacemaker.max.connections"] or possible
    return min(most, possible), conf["pacemaker.max.connections.per.address"]
