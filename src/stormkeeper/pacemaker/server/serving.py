"""A Pacemaker in an event loop: what it is made of, its timers, and what a reload changes.

Whatever a client does wrong, it costs that client its connection and nothing more.
"""

import asyncio
import logging
import resource
import socket
import uuid
from typing import Final

import stormkeeper
from stormkeeper.conf import Conf
from stormkeeper.daemon.logs import LineBudget, counted
from stormkeeper.daemon.sockets import AT_ONCE, AT_ONCE_OVER_TLS, Acceptor, Admission
from stormkeeper.pacemaker.server import reload
from stormkeeper.pacemaker.server.access import Policy
from stormkeeper.pacemaker.server.answering import Answerer, ServerStatus
from stormkeeper.pacemaker.server.connections import tls
from stormkeeper.pacemaker.server.connections.asyncio_channels import AsyncioChannels
from stormkeeper.pacemaker.server.connections.channels import RESET_BY_CLIENT, Channels
from stormkeeper.pacemaker.server.engine import Engine, load
from stormkeeper.pacemaker.server.session import Session, Sessions
from stormkeeper.pacemaker.server.snapshot import (
    EventCounts,
    ServerSnapshot,
    oldest_pulse,
    recent_sizes,
    requests_by_verb,
)
from stormkeeper.pacemaker.server.store.horizon import Horizon, clock
from stormkeeper.pacemaker.server.store.limits import StoreLimits, memory_allowed
from stormkeeper.pacemaker.server.store.pulse_store import PulseStore
from stormkeeper.sasl import methods
from stormkeeper.tls_files import Certificate

_log = logging.getLogger(__name__)

#: Seconds between two looks at what is due.
_TICK: Final = 1.0
#: Seconds between two stretches of expiry while there is more to expire: a fifth of a core.
_EXPIRY_REST: Final = 0.01
#: Seconds that clients have to read their answers when the daemon stops.
DRAIN: Final = 2.0
#: The part of the memory that this process may have that unanswered requests and unread answers of
#: all connections may take: an eighth.
_BUFFERED_SHARE: Final = 8
#: Descriptors that are kept from clients: our own, and a file that is read at a reload.
_OWN_DESCRIPTORS: Final = 64
#: Fewer open files than these are not meant for a daemon that serves a cluster.
_FEW_DESCRIPTORS: Final = 1_000
#: What sets how many connections are let in, in all and from one address.
_LIMITS: Final = ("pacemaker.max.connections", "pacemaker.max.connections.per.address")
#: One line about connections that are turned away, for each cause, in so many seconds.
_TURNED_AWAY_SECONDS: Final = 10.0


class PacemakerServer:
    """A Pacemaker in an asyncio loop, from `start` to `stop`.

    Parameters
    ----------
    conf
        Its configuration, of which the files are read at once.

    Raises
    ------
    ConfigError
        When something in the configuration or the files that it names is wrong.
    """

    def __init__(self, conf: Conf) -> None:
        self.conf = conf
        engine = load(conf["pacemaker.engine"])
        self.events = EventCounts()
        policy = Policy.from_conf(conf)
        self._tls = tls.server_context(conf)
        self.engine: Engine = engine if self._tls is None else engine.over_tls()
        self._tls_files = reload.fingerprint(conf, tls.FILES)
        index = self.engine.pulse_index()
        self.store = PulseStore(index, uuid.uuid4().hex, clock, StoreLimits.of(conf))
        max_size: int = conf["pacemaker.thrift.message.size.max"]
        answerer = Answerer(self.store, self._status, max_size=max_size)
        self.sessions = Sessions(answerer, policy, self.events, clock)
        self.admission = Admission(*_admitted(conf), _LIMITS)
        self.channels: Channels = self.engine.channels(
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
        """Serve the clients of a socket that listens; in a running loop, and once."""
        self._loop = asyncio.get_running_loop()
        at_once = AT_ONCE if self._tls is None else AT_ONCE_OVER_TLS
        self._acceptor = Acceptor(listener, self._welcome, self._on_shortage, at_once)
        self.channels.attach(self._loop)
        self._acceptor.start()
        self.horizon.restart()  # until now nobody was heard
        self.is_serving = True
        self._tick()

    async def stop(self) -> int:
        """Accept no more, answer what has come, and close all connections.

        Returns
        -------
        int
            The clients that had not taken their answers in time. Those are not counted whose
            answers the system took and could not deliver.
        """
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
        """The certificate that clients are shown; None without TLS, or if it cannot be read."""
        return None if self._tls is None else self._tls.certificate

    def snapshot(self) -> ServerSnapshot:
        """Return what is to be seen now; some tenths of a millisecond, however much is held."""
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
            pulses_expired=self.store.expired,
            bytes_held=index.bytes_held,
            max_bytes=index.max_bytes,
            oldest_pulse=oldest_pulse(index, now),
            recent_sizes=recent_sizes(index),
            requests=requests_by_verb(counts, self.sessions.answerer.asked),
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
        """Return in a line what this server runs on and whom it serves."""
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
        """Say whether open files limit the connections to fewer than are configured or usual."""
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

    def reload(self, new: Conf) -> reload.Reload:
        """Let another configuration hold, as far as it can; return what that changes.

        Raises
        ------
        ConfigError
            When something in it or in the files that it names is wrong; nothing is changed then.
        """
        change = reload.compare(self.conf, new)
        conf, changes = change.conf, list(change.changes)
        policy = Policy.from_conf(conf)
        context = tls.server_context(conf)
        tls_files = reload.fingerprint(conf, tls.FILES)
        limits = StoreLimits.of(conf)
        file = methods.login_file(conf)
        if policy.method != "NONE" and file != methods.login_file(self.conf):
            changes.append(f"the JAAS file is {file}")
        # From here on nothing fails.
        kept = self.conf["pacemaker.pulse.ttl.secs"]
        if kept and not 0 < conf["pacemaker.pulse.ttl.secs"] <= kept:
            self.horizon.dropped(kept)
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
            self.channels.sweep(clock())  # at once: they may hold what they were given
        self.conf, self._tls, self._tls_files = conf, context, tls_files
        self.store.limits = limits
        self.admission.most, self.admission.most_per_address = _admitted(conf)
        self.channels.frame_timeout = conf["pacemaker.frame.timeout.secs"]
        self.channels.output_timeout = conf["pacemaker.output.timeout.secs"]
        return reload.Reload(conf, tuple(changes), change.later)

    def _welcome(self, connection: socket.socket, address: str, port: int) -> None:
        refusal = self.admission.refuses(address, len(self.channels))
        if refusal is not None:
            connection.close()
            self._turn_away(address, *refusal)
            return
        session = self.sessions.open(address, port)
        self.admission.entered(address)
        try:
            self._adopt(connection, session)
        except OSError:
            self.sessions.ended(session, "", RESET_BY_CLIENT)
            self._freed(session)
            raise
        self.events.accepted += 1

    def _on_shortage(self) -> None:
        # Who cannot connect cannot beat.
        self.horizon.restart()
        self.events.turned_away["descriptors"] += 1

    def _adopt(self, connection: socket.socket, session: Session) -> None:
        if self._tls is None:
            self.channels.adopt(connection, session, clock())
            return
        assert isinstance(self.channels, AsyncioChannels)
        timeout = self.sessions.policy.handshake_timeout
        self.channels.adopt(connection, session, clock(), self._tls, timeout)

    def _turn_away(self, address: str, cause: str, reason: str) -> None:
        self.events.turned_away[cause] += 1
        left_out = self._turned_away.spend(cause, clock())
        if left_out is not None:
            more = f"; and {left_out} more for that reason since" if left_out else ""
            extra = {"peer": address, "cause": cause}
            _log.warning("turned away %s: %s%s", address, reason, more, extra=extra)

    def _freed(self, session: Session) -> None:
        self.admission.left(session.address)

    def _tick(self) -> None:
        self._loop.call_later(_TICK, self._tick)
        self.swept = clock()
        self.observe()
        self.channels.sweep(self.swept)
        if not self._is_expiring:
            self._expire(0)

    def _expire(self, expired: int) -> None:
        """Expire for a moment, and go on soon if there may be more."""
        # Not under way any more, should this fail: the next tick begins anew.
        self._is_expiring = False
        # While the horizon is nearer, a pulse may be old because its next could not come.
        ttl: float = self.conf["pacemaker.pulse.ttl.secs"]
        now = self.store.expire(ttl if ttl <= self.horizon.seconds() else 0)
        self._is_expiring = now > 0
        if now:
            self._loop.call_later(_EXPIRY_REST, self._expire, expired + now)
        elif expired:
            _log.info("%s expired, %d held", counted(expired, "pulse"), self.store.keys)

    def observe(self) -> None:
        """Note that the process runs and what it lost; before `horizon` is read."""
        silence = self.horizon.observe()
        if silence is not None:
            _log.warning("was stopped for %.1f s: pulses sent meanwhile may be lost", silence)
        lost_pulses = self.events.lost_pulses()
        if lost_pulses != self._lost_pulses:
            self._lost_pulses = lost_pulses
            self.horizon.lost()

    def vouched(self) -> float:
        """Return for how many seconds a path without a pulse has been silent at least."""
        # After a suspension it may be asked before the timer comes due.
        self.observe()
        return self.horizon.vouched(self.conf["pacemaker.pulse.ttl.secs"])

    def _status(self) -> ServerStatus:
        return ServerStatus(
            instance=self.store.instance,
            uptime_ms=int((clock() - self.started) * 1000),
            horizon_ms=int(self.vouched() * 1000),
            version=stormkeeper.__version__,
            revision=self.store.revision,
            keys=self.store.keys,
            pulses_received=self.store.pulses_received,
            connections=len(self.sessions),
        )


def _ending(certificate: Certificate | None) -> str:
    """Say when a certificate ends, to be put behind other words; nothing if there is none."""
    return "" if certificate is None else f", certificate until {tls.shown(certificate.ends)}"


def _descriptors() -> int:
    """Return how many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _admitted(conf: Conf) -> tuple[int, int]:
    """Return the connections that are let in, in all and from one address."""
    possible = max(1, _descriptors() - _OWN_DESCRIPTORS)
    most = conf["pacemaker.max.connections"] or possible
    return min(most, possible), conf["pacemaker.max.connections.per.address"]
