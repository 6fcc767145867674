"""How a supervisor is: its metrics and its health, as pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from stormkeeper.daemon.http import Page
from stormkeeper.supervisor.slots import SlotStatus

#: Seconds for which the slots' thread may not have done its regular work.
MAX_SILENCE: Final = 10.0


#: What is said of a topology whose assignment has no launches.
FOREIGN: Final = (
    "is not run here: a Nimbus that is not ours, such as Java's, has placed it on this supervisor;"
    " stop that Nimbus and kill the topology, or give this supervisor another storm.zookeeper.root"
)


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """How the slots are, for whoever looks.

    Parameters
    ----------
    turned_at
        When the thread last did its regular work, in seconds of a monotonic clock.
    slots
        By port.
    memory
        What each worker takes with all that it started, in bytes, by its slot's port.
    launches, crashes, problems
        How many there have been.
    foreign
        The topologies that another Nimbus has placed here, which do not run.
    """

    turned_at: float
    slots: Mapping[int, SlotStatus] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)
    launches: int = 0
    crashes: int = 0
    problems: int = 0
    foreign: frozenset[str] = frozenset()


def pages(
    seen: Callable[[], SupervisorStatus],
    unready: Callable[[], str | None],
    clock: Callable[[], float],
) -> dict[str, Callable[[str], Page]]:
    """Return the pages of a supervisor, by path.

    ``/metrics`` are its figures, in the text format that the client accepts; ``/healthz`` says
    whether it looks after its slots; ``/readyz`` whether it takes new work, and what each slot is
    doing.

    Parameters
    ----------
    seen
        Returns how the slots are.
    unready
        Returns why no new work is taken; None: it is.
    clock
        Seconds of the monotonic clock of `seen`.
    """

    def metrics(accept: str) -> Page:
        # 0.1 s and 5 MB, for who asks for them.
        from stormkeeper.supervisor.metrics import page  # noqa: PLC0415

        return page(seen(), accept, is_ready=unready() is None)

    def healthz(_: str) -> Page:
        ago = clock() - seen().turned_at
        if ago > MAX_SILENCE:
            return Page(503, f"the slots were last looked after {ago:.1f} s ago\n".encode())
        return Page(200, b"ok\n")

    def readyz(_: str) -> Page:
        why = unready()
        lines = [why or "ready", *slot_lines(seen())]
        return Page(503 if why else 200, "".join(f"{line}\n" for line in lines).encode())

    return {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}


def slot_lines(seen: SupervisorStatus) -> Iterator[str]:
    """Yield what each slot is doing, and what is not run though it was placed here, a line each."""
    for port, slot in sorted(seen.slots.items()):
        said = [f"{port} {slot.state.value}"]
        if slot.assignment is not None:
            said.append(slot.assignment.storm_id)
        if slot.crashes:
            said.append(f"{slot.crashes} crashes in a row")
        if slot.reason:
            said.append(slot.reason.splitlines()[0])
        yield ", ".join(said)
    for storm_id in sorted(seen.foreign):
        yield f"{storm_id} {FOREIGN}"
