"""PySpark's daemon of Python workers (``python -m``), with a fault mended.

PySpark announces the text of an exception to the JVM before it encodes the text. If the text has
half of a surrogate pair, the encoding fails, and the JVM waits for ever.
"""

from __future__ import annotations

import functools
import io
import struct
import traceback
from typing import IO

from pyspark import daemon, util
from pyspark.serializers import SpecialLengths

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
