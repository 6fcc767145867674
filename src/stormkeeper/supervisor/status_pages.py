"""A supervisor's status, and pages of metrics and health."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from stormkeeper.daemon.http import Page
from stormkeeper.supervisor.slots import SlotStatus

MAX_SILENCE: Final = 10.0


#: Text for a topology whose assignment has no launches.
FOREIGN: Final = (
    "is not run here: a Nimbus that is not ours, such as Java's, has placed it on this supervisor;"
    " stop that Nimbus and kill the topology, or give this supervisor another storm.zookeeper.root"
)


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The status of a supervisor's slots, with counts since the start."""

    #: Time of the thread's last turn, in seconds of a monotonic clock.
    turned_at: float
    slots: Mapping[int, SlotStatus] = field(default_factory=dict)
    #: Memory of each worker with all that it started, in bytes, by port.
    memory: Mapping[int, int] = field(default_factory=dict)
    launches: int = 0
    crashes: int = 0
    problems: int = 0
    #: Topologies that another Nimbus has placed here, which do not run.
    foreign: frozenset[str] = frozenset()


def pages(
    status: Callable[[], SupervisorStatus],
    unready: Callable[[], str | None],
    clock: Callable[[], float],
) -> dict[str, Callable[[str], Page]]:
    """Return the handlers of a supervisor's pages, by path.

    ``/healthz`` is healthy while the slots' thread runs; ``/readyz`` shows whether the supervisor
    takes new work, and each slot. `unready` returns why not.
    """

    def metrics(accept: str) -> Page:
        from stormkeeper.supervisor.metrics import page  # noqa: PLC0415

        return page(status(), accept, is_ready=unready() is None)

    def healthz(_: str) -> Page:
        ago = clock() - status().turned_at
        if ago > MAX_SILENCE:
            return Page(503, f"the slots were last looked after {ago:.1f} s ago\n".encode())
        return Page(200, b"ok\n")

    def readyz(_: str) -> Page:
        why = unready()
        lines = [why or "ready", *slot_lines(status())]
        return Page(503 if why else 200, "".join(f"{line}\n" for line in lines).encode())

    return {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}


def slot_lines(status: SupervisorStatus) -> Iterator[str]:
    """Yield a line for each slot, and for each topology that was placed here and cannot run."""
    for port, slot in sorted(status.slots.items()):
        texts = [f"{port} {slot.state.value}"]
        if slot.assignment is not None:
            texts.append(slot.assignment.storm_id)
        if slot.crashes:
            texts.append(f"{slot.crashes} crashes in a row")
        if slot.reason:
            texts.append(slot.reason.splitlines()[0])
        yield ", ".join(texts)
    for storm_id in sorted(status.foreign):
        yield f"{storm_id} {FOREIGN}"
