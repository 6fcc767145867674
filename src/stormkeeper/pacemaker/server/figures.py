"""Everything that can be seen of a Pacemaker at one moment, for metrics and health."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import stormkeeper
from stormkeeper.pacemaker.server.horizon import clock
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.serving import PacemakerServer
from stormkeeper.pacemaker.server.tallies import Tallies
from stormkeeper.pacemaker.wire import VERBS, MessageType

#: Seconds without a sweep, which is due every second, after which the event loop counts as stuck.
MAX_SILENCE: Final = 5.0

_COUNTED_BY_CHANNELS: Final = (MessageType.SEND_PULSE, MessageType.GET_PULSE)

#: Entries of the index that one picture looks at: a tenth of a millisecond.
_LOOKED_AT: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A Pacemaker's figures; times in seconds, sizes in bytes, counts since its start.

    Parameters
    ----------
    instance, version, engine, auth_method
        Who it is and what it runs.
    is_serving
        Whether it takes new clients; not while it drains.
    swept_ago
        Time since the event loop last came to its regular work.
    uptime, horizon
        As in ``ServerInfo``: since its start, and for how long a path without a pulse has been
        silent at least.
    heartbeat_period
        ``task.heartbeat.frequency.secs``: how often a worker beats.
    pulse_ttl
        Age at which a pulse is dropped; 0: never.
    revision, keys, tombstones, pulses_received, bytes_held, max_bytes
        Of the pulse index; `max_bytes` 0 means no limit.
    oldest_pulse
        Age of the pulse that was received longest ago; None where there is none.
    recent_sizes
        Sizes of the pulses that were received last.
    requests
        By verb.
    bytes_in, bytes_out
        Of the protocol, frames' lengths included.
    latency_bounds, latency_counts, latency_sum
        Requests by the time that their answers took: upper bounds of the buckets, the requests in
        each (one more than bounds: those above them all), and the sum of the times.
    connections, max_connections
        Open, and allowed (0: no limit).
    certificate_ends
        When the certificate that clients are shown ends, in seconds since 1970; None without TLS.
    tallies
        What is counted by cause.
    """

    instance: str
    version: str
    engine: str
    auth_method: str
    is_serving: bool
    swept_ago: float
    uptime: float
    horizon: float
    heartbeat_period: float
    pulse_ttl: float
    revision: int
    keys: int
    tombstones: int
    pulses_received: int
    bytes_held: int
    max_bytes: int
    oldest_pulse: float | None
    recent_sizes: Sequence[int]
    requests: Mapping[str, int]
    bytes_in: int
    bytes_out: int
    latency_bounds: Sequence[float]
    latency_counts: Sequence[int]
    latency_sum: float
    connections: int
    max_connections: int
    certificate_ends: float | None = None
    tallies: Tallies = field(default_factory=Tallies)

    @property
    def has_seen_a_period(self) -> bool:
        """Whether every worker that is alive has had the time to beat here.

        Until then an absent pulse says nothing: it is not yet reported. Afterwards a worker that
        has none beats elsewhere, or not at all.
        """
        return self.horizon >= self.heartbeat_period


def figures_of(server: PacemakerServer) -> Figures:
    """Take the picture of a server; some tenths of a millisecond, however much it holds."""
    vouched = server.vouched()
    index, conf, now = server.store.index, server.conf, clock()
    uptime = now - server.started
    counts = server.channels.counters()
    certificate = server.certificate
    bounds, latency_counts, latency_sum = server.channels.latency()
    return Figures(
        instance=server.store.instance,
        version=stormkeeper.__version__,
        engine=server.engine.name,
        auth_method=server.sessions.policy.method,
        is_serving=server.is_serving,
        swept_ago=now - server.swept,
        uptime=uptime,
        horizon=min(vouched, uptime),
        heartbeat_period=conf["task.heartbeat.frequency.secs"],
        pulse_ttl=conf["pacemaker.pulse.ttl.secs"],
        revision=index.revision,
        keys=index.keys,
        tombstones=index.tombstones,
        pulses_received=index.pulses_received,
        bytes_held=index.bytes_held,
        max_bytes=index.max_bytes,
        oldest_pulse=oldest_pulse(index, now),
        recent_sizes=recent_sizes(index),
        requests=_requests(counts, server.sessions.answerer.asked),
        bytes_in=counts["bytes_in"],
        bytes_out=counts["bytes_out"],
        latency_bounds=bounds,
        latency_counts=latency_counts,
        latency_sum=latency_sum,
        connections=len(server.sessions),
        max_connections=server.admission.most,
        certificate_ends=None if certificate is None else certificate.ends.timestamp(),
        tallies=server.tallies,
    )


def _requests(counts: Mapping[str, int], asked: Mapping[MessageType, int]) -> dict[str, int]:
    """Return the requests by type: those that channels count, and those that come to be looked at.

    The others are refused before, or belong to an authentication.
    """
    others = [verb for verb in map(MessageType, VERBS) if verb not in _COUNTED_BY_CHANNELS]
    by_verb = {verb.name.lower(): asked.get(verb, 0) for verb in others}
    other = max(0, counts["others"] - sum(by_verb.values()))
    return {"send_pulse": counts["sends"], "get_pulse": counts["gets"], **by_verb, "other": other}


def oldest_pulse(index: PulseIndex, now: float) -> float | None:
    """Return the age of the pulse that was stored longest ago; None where that is not to be seen.

    Tombstones may stand before it; some are passed over, but not all that there can be.
    """
    entry = index.oldest()
    for _ in range(_LOOKED_AT):
        if entry is None or entry.details is not None:
            break
        entry = index.after(entry)
    return None if entry is None or entry.details is None else max(0.0, now - entry.changed)


def recent_sizes(index: PulseIndex) -> list[int]:
    """Return the sizes of the pulses that were received last, some hundreds of them."""
    newest = index.since(max(0, index.revision - _LOOKED_AT), _LOOKED_AT)
    return [len(entry.details) for entry in newest if entry.details is not None]
