"""PySpark's daemon of Python workers (``python -m`` runs it), which tells the JVM any error.

PySpark's own encodes the text of an exception after it has announced the text to the JVM. Where the
text has half of a surrogate pair, the JVM waits for that text for ever.
"""

from __future__ import annotations

import functools
import io
import struct
import traceback
from typing import IO

from pyspark import daemon, util
from pyspark.serializers import SpecialLengths

_tell = util.handle_worker_exception

_INT = struct.Struct("!i")


@functools.wraps(_tell)
def _tell_any(e: BaseException, outfile: IO[bytes], hide_traceback: bool | None = None) -> None:
    buffer = io.BytesIO()
    _tell(e, buffer, hide_traceback)
    told = buffer.getvalue()
    if len(told) <= _INT.size:  # the announcement alone
        text = "".join(traceback.format_exception(e)).encode(errors="backslashreplace")
        told = _INT.pack(SpecialLengths.PYTHON_EXCEPTION_THROWN) + _INT.pack(len(text)) + text
    outfile.write(told)


if __name__ == "__main__":
    util.handle_worker_exception = _tell_any
    daemon.manager()
