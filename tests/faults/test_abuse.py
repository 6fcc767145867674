"""Every bad input that we know of, while a well-behaved client goes on beside it.

During and after each: the well-behaved client is served as before, and nothing that is stored has
changed. Here each is tried in the cheapest mode that it means something in, and the answers'
times are judged over all of them; ``make faults`` tries each in every mode and judges each alone,
too. What seems to disturb is tried again, twice: what it does, it does again, and what else the
machine did it does not.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import pytest

from faults import modes
from faults.attacker import Attacker, Verdict
from faults.bad_input import PLAIN, Abuse, abuses
from faults.bystander import Bystander
from faults.modes import Mode
from stormkeeper.conf import defaults
from stormkeeper.pacemaker.client import pool
from support.pacemaker import PacemakerProcess
from support.waiting import until

pytestmark = pytest.mark.alone

# So little that a frame of as much is there long before it counts as late.
STORE_BYTES: Final = 1_000_000
PER_ADDRESS: Final = 200
KEPT: Final = {
    f"/workerbeats/kept-{number}-1/node-{number}": random.Random(number).randbytes(3_000)
    for number in range(12)
}
#: How long the windows are in which each abuse is watched, and the quiet ones that it is compared
#: with, in seconds; and how long all of them together are at least.
WINDOW_SECS, WINDOWS_SECS = 0.1, 3.0
#: Times the undisturbed 99th percentile that the disturbed one may be.
FACTOR: Final = 5
#: How often what seems to be above that is tried again.
AGAIN: Final = 2

#: What is judged together, by a name.
Groups = Mapping[str, list[Abuse]]
#: When each began on the system's monotonic clock, and how long it took, in seconds.
Requests = list[tuple[float, float]]


@dataclass
class Scene:
    """A server of one mode with pulses in it, and someone who will misbehave."""

    process: PacemakerProcess
    mode: Mode
    attacker: Attacker

    def kept(self) -> dict[str, bytes | None]:
        conf = defaults().with_values(
            {**self.mode.client, "pacemaker.servers": [self.process.address]}
        )
        with pool.connect(conf) as reader:
            found = {path: reader.get_pulse(path) for path in KEPT}
            found.update(dict.fromkeys(_others(reader), None))
        return found


def _others(reader: Any) -> set[str]:
    names = set(reader.children("/workerbeats")) | set(reader.children("/"))
    return names - {path.split("/")[2] for path in KEPT} - {"workerbeats", "bystander-1-1"}


@contextlib.contextmanager
def scene(mode: Mode) -> Iterator[Scene]:
    limits: Mapping[str, Any] = {
        "pacemaker.frame.timeout.secs": 0.5,
        "pacemaker.handshake.timeout.secs": 0.5,
        "pacemaker.output.timeout.secs": 0.5,
        "pacemaker.store.max.bytes": STORE_BYTES,
        "pacemaker.max.connections.per.address": PER_ADDRESS,
    }
    with PacemakerProcess(conf={**limits, **mode.server}) as process:
        conf = defaults().with_values({**mode.client, "pacemaker.servers": [process.address]})
        with pool.connect(conf) as writer:
            for path, details in KEPT.items():
                writer.send_pulse(path, details)
        yield Scene(
            process,
            mode,
            Attacker(
                process.host,
                process.port,
                tls=mode.tls,
                mechanism=mode.mechanism,
                secret_path=next(iter(KEPT)),
                connections_per_address=PER_ADDRESS,
                store_bytes=STORE_BYTES,
            ),
        )


@dataclass
class Trial:
    """When one abuse was going on, and what came of it."""

    abuse: Abuse
    quiet: tuple[float, float]
    disturbed: tuple[float, float]
    verdict: Verdict | None


def attempt(place: Scene, entry: Abuse, secs: float) -> Trial:
    began = time.monotonic()
    time.sleep(secs)
    start = time.monotonic()
    verdict = entry.act(place.attacker)
    while time.monotonic() < start + secs:  # what it left behind belongs to it
        time.sleep(0.01)
    return Trial(entry, (began, start), (start, time.monotonic()), verdict)


def p99(requests: Requests, windows: list[tuple[float, float]]) -> float:
    times = [seconds for start, seconds in requests if any(a <= start < b for a, b in windows)]
    assert len(times) > 20
    return quantiles(times, n=100)[98]


def run(mode: Mode, chosen: list[Abuse], secs: float) -> tuple[list[Trial], Requests]:
    """Try each; return when each was, and every request of the well-behaved client's."""
    with scene(mode) as place, Bystander(place.process.address, mode.client) as bystander:
        process_id = place.process.pid
        trials = [attempt(place, entry, secs) for entry in chosen]
        # Connections that were left are given up by then, and so are not in the next one's way.
        until(lambda: place.kept() == KEPT)
        assert place.process.pid == process_id
        requests, wrong = bystander.finish()
        log = place.process.log
    assert [
        (trial.abuse.name, trial.verdict)
        for trial in trials
        if (trial.verdict is not None or trial.abuse.outcomes)
        and trial.verdict not in trial.abuse.outcomes
    ] == []
    assert wrong == []
    assert "Traceback" not in log
    for secret in mode.secrets:
        assert secret not in log
    return trials, requests


def disturbing(mode: Mode, groups: Groups, secs: float) -> Groups:
    """Try all that is in any group, and return the groups that slow the well-behaved client down.

    Each is tried after a quiet moment, so what else the machine does meets both alike.
    """
    chosen = list(dict.fromkeys(entry for group in groups.values() for entry in group))
    trials, requests = run(mode, chosen, secs)
    undisturbed = p99(requests, [trial.quiet for trial in trials])
    times = {
        name: p99(requests, [trial.disturbed for trial in trials if trial.abuse in group])
        for name, group in groups.items()
    }
    slow = {name: taken / undisturbed for name, taken in times.items()}
    print(f"times as long as the undisturbed {1e3 * undisturbed:.1f} ms:", slow)
    return {name: groups[name] for name, factor in slow.items() if factor > FACTOR}


def disturbing_each_time(groups: Groups, look: Callable[[Groups], Groups]) -> Groups:
    """Return the groups of which `look` says at each of its looks that they disturb."""
    for _ in range(1 + AGAIN):
        if groups:
            groups = look(groups)
    return groups


def mode(name: str, request: pytest.FixtureRequest, folder: Path) -> Mode:
    if name == "NONE":
        return modes.none()
    if name == "TLS":
        return modes.tls(folder)
    if name == "KERBEROS":
        return modes.kerberos(request.getfixturevalue("kerberos_realm"), folder / "kerberos")
    return modes.password(name, folder)


def test_there_are_at_least_sixty() -> None:
    assert len(list(abuses())) >= 60


def test_only_what_disturbs_each_time_disturbs() -> None:
    looks: list[list[str]] = []

    def look(groups: Groups) -> Groups:
        looks.append(list(groups))
        return {name: [] for name in groups if name == "always" or len(looks) < 3}

    found = disturbing_each_time({"always": [], "twice": []}, look)
    assert list(found) == ["always"]
    assert looks == [["always", "twice"]] * 3
    assert disturbing_each_time({"never": []}, lambda _: {}) == {}


@pytest.mark.parametrize(
    "name",
    [name if name == "NONE" else pytest.param(name, marks=pytest.mark.slow) for name in PLAIN],
)
def test_no_abuse_disturbs_anybody(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    chosen = [entry for entry in abuses() if entry.is_tried_at_every_change(name)]
    secs = max(WINDOW_SECS, WINDOWS_SECS / len(chosen))
    tried = mode(name, request, tmp_path)
    groups = {"all of them": chosen}
    assert disturbing_each_time(groups, lambda left: disturbing(tried, left, secs)) == {}


@pytest.mark.faults
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.timeout(1800)
def test_no_abuse_in_any_mode_disturbs_anybody(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    chosen = [entry for entry in abuses() if name in entry.modes]
    tried = mode(name, request, tmp_path)
    groups = {"all of them": chosen, **{entry.name: [entry] for entry in chosen}}
    assert disturbing_each_time(groups, lambda left: disturbing(tried, left, 1.0)) == {}
