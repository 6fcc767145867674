"""Carries out a call: arguments to the handler, and the result or exception to an answer.

====================================  =============================================================
the handler                           the answer
====================================  =============================================================
returns a value                       the value
returns None instead of a value       without a value: the client's library says MISSING_RESULT
raises what the method declares       that exception
raises a `CallerError`                UNKNOWN, with the error's text
raises a `CallRefusedError`           INTERNAL_ERROR, ``Internal error processing <method>: <text>``
does not reach ZooKeeper              the same, with `NO_ZOOKEEPER` before the text
raises anything else                  INTERNAL_ERROR, ``Internal error processing <method>``; the
                                      reason is in the log only
is not called: bad arguments          PROTOCOL_ERROR
is not called: no such method         UNKNOWN_METHOD
====================================  =============================================================
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

from stormkeeper.daemon.logs import LineBudget
from stormkeeper.errors import (
    CallerError,
    CallRefusedError,
    SerializationError,
    StateUnavailableError,
    StormkeeperError,
)
from stormkeeper.rpc.message_frames import (
    NO_ZOOKEEPER,
    FaultKind,
    Kind,
    ThriftMessage,
    fault_frame,
    internal_error,
    record_frame,
)
from stormkeeper.thrift.idl import STRUCT, Method, Service, schema_of
from stormkeeper.thrift.reader import decode

_log = logging.getLogger(__name__)

ANSWERED: Final = "answered"
DECLARED: Final = "declared"
FAILED: Final = "failed"
MALFORMED: Final = "malformed"
UNKNOWN: Final = "unknown"
DROPPED: Final = "dropped"
#: All unknown methods in counters.
NO_METHOD: Final = "?"

#: Longer messages are decoded by one thread at a time, as decoding holds the interpreter.
_LONG: Final = 65_536

#: Most bytes of messages in progress, beyond the first: decoding may take forty times as much.
MAX_COST: Final = 8 * 1024 * 1024

#: Shorter messages do not wait for that: handlers may take minutes, such as submissions.
CHEAP: Final = 16 * 1024

#: Most bytes of waiting messages, beyond the first.
MAX_WAITING_COST: Final = 64 * 1024 * 1024


class Dispatcher:
    """Carries out calls, in any number of threads.

    The handler has a method for each of the service's, with the arguments in the IDL's order, None
    for an absent one. Raises `TypeError` if a method is missing.
    """

    def __init__(
        self, service: Service, handler: object, clock: Callable[[], float] = time.monotonic
    ) -> None:
        lacking = [name for name in service.methods if not callable(getattr(handler, name, None))]
        if lacking:
            raise TypeError(f"{type(handler).__name__} has no {', '.join(lacking)}")
        self._service = service
        self._handler = handler
        self._clock = clock
        self._lock = threading.Lock()
        self._long_reading = threading.Lock()
        self._lines = LineBudget()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._declared = {
            name: _declared(method) for name, method in service.methods.items() if method.answer
        }

    def carry_out(self, message: ThriftMessage, by: str) -> bytes | None:
        """Return the frame of the answer, None for a one-way call; `by` is for the log."""
        began = self._clock()
        method = self._service.methods.get(message.name)
        if method is None:
            outcome, frame = UNKNOWN, _unknown(message)
        else:
            outcome, frame = self._call(method, message, by)
        with self._lock:
            name = NO_METHOD if method is None else method.name
            self.calls[name, outcome] += 1
            self.seconds[name] += self._clock() - began
        return None if method is not None and method.answer is None else frame

    def drop(self, message: ThriftMessage) -> None:
        """Count a call of a client that is gone."""
        name = message.name if message.name in self._service.methods else NO_METHOD
        with self._lock:
            self.calls[name, DROPPED] += 1

    def _call(self, method: Method, message: ThriftMessage, by: str) -> tuple[str, bytes | None]:
        name, sequence = method.name, message.sequence
        try:
            with self._long_reading if len(message.body) > _LONG else nullcontext():
                arguments = decode(method.arguments, message.body)
        except SerializationError as error:
            self._warn(name, "refused %s of %s: %s", name, by, error)
            return MALFORMED, fault_frame(name, sequence, FaultKind.PROTOCOL_ERROR, str(error))
        try:
            value = getattr(self._handler, name)(*vars(arguments).values())
            return ANSWERED, _answer(method, sequence, value)
        except Exception as error:
            declared = self._declare(method, sequence, error)
            if declared is not None:
                return DECLARED, declared
            self._tell(name, by, error)
            return FAILED, _fault(name, sequence, error)

    def _declare(self, method: Method, sequence: int, error: Exception) -> bytes | None:
        field = self._declared.get(method.name, {}).get(type(error))
        if field is None or method.answer is None:
            return None
        try:
            answer = method.answer(**{field: error})
            return record_frame(Kind.REPLY, method.name, sequence, answer)
        except SerializationError:  # the exception's message is not text
            return None

    def _tell(self, name: str, by: str, error: Exception) -> None:
        if isinstance(error, StormkeeperError) and not isinstance(error, SerializationError):
            self._warn(name, "%s of %s failed: %s", name, by, error)
        else:
            self._warn(name, "%s of %s failed", name, by, error=error)

    def _warn(self, name: str, line: str, *values: object, error: Exception | None = None) -> None:
        with self._lock:
            left_out = self._lines.spend(name, self._clock())
        if left_out is None:
            return
        if left_out:
            line += f" (and {left_out} more of that method since)"
        level = logging.WARNING if error is None else logging.ERROR
        _log.log(level, line, *values, exc_info=error)


def _declared(method: Method) -> dict[type, str]:
    """Return the fields of a method's declared exceptions by type."""
    assert method.answer is not None
    fields = schema_of(method.answer).fields
    return {field.type[1]: field.name for field in fields if field.id and field.type[0] == STRUCT}


def _fault(name: str, sequence: int, error: Exception) -> bytes:
    kind, text = FaultKind.INTERNAL_ERROR, internal_error(name)
    match error:
        case CallerError():
            kind, text = FaultKind.UNKNOWN, str(error)
        case CallRefusedError():
            text += f": {error}"
        case StateUnavailableError():
            text += f": {NO_ZOOKEEPER}: {error}"
    return fault_frame(name, sequence, kind, text)


def _answer(method: Method, sequence: int, value: Any) -> bytes | None:
    if method.answer is None:
        return None
    has_value = any(field.id == 0 for field in schema_of(method.answer).fields)
    answer: Any = method.answer
    record = answer(success=value) if has_value else answer()
    return record_frame(Kind.REPLY, method.name, sequence, record)


def _unknown(message: ThriftMessage) -> bytes | None:
    if message.kind is Kind.ONEWAY:
        return None
    text = f"Invalid method name: '{message.name}'"
    return fault_frame(message.name, message.sequence, FaultKind.UNKNOWN_METHOD, text)


class CallThreads:
    """Runs calls in a limited number of threads, started when needed.

    An expensive call lets others pass. Threads are daemons, so a hanging handler does not keep the
    process alive.
    """

    def __init__(self, threads: int, most_waiting: int, name: str) -> None:
        self._most = threads
        self._most_waiting = most_waiting
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._threads: list[threading.Thread] = []
        self._is_stopped = False
        #: Busy threads, and message bytes of calls in progress and waiting.
        self.busy = 0
        self._cost = 0
        self._waiting_cost = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, work: Callable[[], None], cost: int) -> bool:
        """Queue a call, which must not raise; `cost` is in bytes. Returns False if refused."""
        with self._changed:
            if self._is_stopped or len(self._waiting) >= self._most_waiting:
                return False
            if self._waiting and self._waiting_cost + cost > MAX_WAITING_COST:
                return False
            if self.busy + len(self._waiting) >= len(self._threads) and not self._start_one():
                return False
            self._waiting.append((cost, work))
            self._waiting_cost += cost
            self._changed.notify()
            return True

    def stop(self) -> None:
        """Start no further call; calls in progress continue."""
        with self._changed:
            self._is_stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def _start_one(self) -> bool:
        """Start a thread if allowed; return whether there is any."""
        if len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system's limit
                _log.error("cannot start a thread for calls: %s", error)
            else:
                self._threads.append(thread)
        return bool(self._threads)

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            cost, work = taken
            try:
                work()
            except BaseException:  # the thread stays for the next call
                _log.exception("a call failed: this is a defect of Stormkeeper")
            del work, taken
            with self._changed:
                self.busy -= 1
                self._cost -= cost
                if self._waiting:
                    # An expensive call may fit now.
                    self._changed.notify_all()

    def _take(self) -> tuple[int, Callable[[], None]] | None:
        with self._changed:
            while not self._is_stopped:
                for place, (cost, work) in enumerate(self._waiting):
                    if cost <= CHEAP or not self._cost or self._cost + cost <= MAX_COST:
                        del self._waiting[place]
                        self._waiting_cost -= cost
                        self.busy += 1
                        self._cost += cost
                        return cost, work
                self._changed.wait()
            return None
