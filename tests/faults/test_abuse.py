"""Every bad input that we know of, while a well-behaved client goes on beside it.

During and after each: the well-behaved client is served as before, and nothing that is stored has
changed. Here each is tried in the cheapest mode that it means something in, and the answers'
times are judged over all of them; ``make faults`` tries each in every mode and judges each alone.
One that seems to disturb is tried again, twice: what it does, it does again, and what else the
machine did it does not.
"""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
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

STORE_BYTES: Final = 4_000_000
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
#: How often one is tried again that seems to be above that.
AGAIN: Final = 2


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


def p99(requests: list[tuple[float, float]], windows: list[tuple[float, float]]) -> float:
    times = [seconds for start, seconds in requests if any(a <= start < b for a, b in windows)]
    assert len(times) > 20
    return quantiles(times, n=100)[98]


def run(
    mode: Mode, chosen: list[Abuse], secs: float, *, each_alone: bool, again: int = AGAIN
) -> None:
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
    undisturbed = p99(requests, [trial.quiet for trial in trials])
    if again == AGAIN:
        assert p99(requests, [trial.disturbed for trial in trials]) <= FACTOR * undisturbed
    if not each_alone:
        return
    disturbing = [
        trial.abuse for trial in trials if p99(requests, [trial.disturbed]) > FACTOR * undisturbed
    ]
    assert again or not disturbing, [entry.name for entry in disturbing]
    if disturbing:
        run(mode, disturbing, secs, each_alone=True, again=again - 1)


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


@pytest.mark.parametrize(
    "name",
    [name if name == "NONE" else pytest.param(name, marks=pytest.mark.slow) for name in PLAIN],
)
@pytest.mark.timeout(300)
def test_no_abuse_disturbs_anybody(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    chosen = [entry for entry in abuses() if entry.is_tried_at_every_change(name)]
    secs = max(WINDOW_SECS, WINDOWS_SECS / len(chosen))
    run(mode(name, request, tmp_path), chosen, secs, each_alone=False)


@pytest.mark.faults
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.timeout(1200)
def test_no_abuse_in_any_mode_disturbs_anybody(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    chosen = [entry for entry in abuses() if name in entry.modes]
    run(mode(name, request, tmp_path), chosen, 1.0, each_alone=True)
