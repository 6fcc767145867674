"""Calls of Spark's JVM into this process: wraps ``foreachBatch`` functions, and answers every call.

py4j answers the JVM only after an ``Exception``, and only in UTF-8: after ``sys.exit()``, or half
of a surrogate pair in an exception's text, the JVM would wait for ever. PySpark's daemon of Python
workers has the same fault; ``python -m stormkeeper.daemon.spark_callbacks`` is that daemon, mended.

When a query stops in mid-batch, Spark searches the exception's text for the name of an
interruption, with a pattern that overflows the stack after some 1,000 characters and stops at a
line separator (U+2028). So `sendable` inserts a separator, and `without_separators` removes it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import IO, Any

from py4j import protocol
from py4j.clientserver import ClientServerConnection
from py4j.java_gateway import CallbackConnection
from pyspark import daemon, util
from pyspark.serializers import SpecialLengths
from pyspark.sql.streaming.readwriter import DataStreamWriter

#: A ``foreachBatch`` function; takes the batch's DataFrame and number.
BatchFunction = Callable[[Any, int], Any]

#: Characters kept of an answer, which Spark copies into logs, events and errors.
_HEAD, _TAIL = 20_000, 4_000

_ERROR = protocol.RETURN_MESSAGE + protocol.ERROR
_SURROGATE = re.compile("[\ud800-\udfff]")

#: The beginning of Spark's pattern with the class of Java's exception; no
#: escape of py4j may be cut in two.
_JAVA_ERROR = re.compile(
    r"py4j\.protocol\.Py4JJavaError: An error occurred while calling(?:\\.|[^\\]){0,200}"
)
_SEPARATOR = "\u2028"


def query_id(batch: Any) -> str | None:
    """Return Spark's id of a batch's query, inside a ``foreachBatch`` function.

    A property of Spark 4.3 without a public interface.
    """
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    return None if found is None else str(found)


@contextlib.contextmanager
def replaced(owner: type | ModuleType, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a class or module of PySpark or py4j in this block."""
    before = {name: vars(owner)[name] for name in attributes}
    for name, attribute in attributes.items():
        setattr(owner, name, attribute)
    try:
        yield
    finally:
        for name, attribute in before.items():
            setattr(owner, name, attribute)


def wrapped(wrap: Callable[[BatchFunction], BatchFunction]) -> AbstractContextManager[None]:
    """Apply `wrap` to each ``foreachBatch`` function given in this block."""
    for_each_batch = DataStreamWriter.foreachBatch

    def wrapping(writer: DataStreamWriter, func: Callable[[Any, int], None]) -> DataStreamWriter:
        return for_each_batch(writer, wrap(func))

    return replaced(DataStreamWriter, foreachBatch=wrapping)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Answer every call of the JVM in this block, whatever the called code raises."""
    with contextlib.ExitStack() as stack:
        for class_ in (ClientServerConnection, CallbackConnection):
            stack.enter_context(replaced(class_, _call_proxy=_answering(class_._call_proxy)))
        yield


def _answering(call: Callable[[Any, str, Any], str]) -> Callable[[Any, str, Any], str]:
    @functools.wraps(call)
    def answer(connection: Any, object_id: str, stream: Any) -> str:
        try:
            message = call(connection, object_id, stream)
        except BaseException as error:  # py4j answers only after an Exception
            text = "".join(traceback.format_exception(error))
            message = _ERROR + protocol.get_command_part(text, connection.pool)
        return sendable(message)

    return answer


def sendable(message: str) -> str:
    """Return an answer that py4j can send and Spark can search; shortens a long error."""
    if message.startswith(_ERROR):
        message = _JAVA_ERROR.sub(rf"\g<0>{_SEPARATOR}", message)
        if len(message) > _HEAD + _TAIL:
            # No escape may be cut in two.
            head, tail = message[:_HEAD].rstrip("\\"), message[-_TAIL:].lstrip("\\")
            message = f"{head} ... {len(message) - _HEAD - _TAIL} characters ... {tail}"
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", message)


def without_separators(text: str) -> str:
    """Remove the separators of `sendable`."""
    return text.replace(_SEPARATOR, "")


_send_error = util.handle_worker_exception

_INT = struct.Struct("!i")


@functools.wraps(_send_error)
def _send_any_error(
    e: BaseException, outfile: IO[bytes], hide_traceback: bool | None = None
) -> None:
    buffer = io.BytesIO()
    _send_error(e, buffer, hide_traceback)
    message = buffer.getvalue()
    if len(message) <= _INT.size:  # the announcement alone
        text = "".join(traceback.format_exception(e)).encode(errors="backslashreplace")
        message = _INT.pack(SpecialLengths.PYTHON_EXCEPTION_THROWN) + _INT.pack(len(text)) + text
    outfile.write(message)


if __name__ == "__main__":
    util.handle_worker_exception = _send_any_error
    daemon.manager()
