"""Text of errors in a user's code, without the frames of Spark and Stormkeeper.

A query's exception has pages: the JVM's stack, the plan, and somewhere a Python traceback. A user
needs that traceback with the frames of their own code, or else Spark's message.
"""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path
from types import TracebackType

import py4j
import pyspark

import stormkeeper
from stormkeeper.daemon.spark_callbacks import without_separators
from stormkeeper.topology import faults
from stormkeeper.topology.package import manifest

_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n((?:[ \t]+.*\n)+)"
    r"(\S[^\n]*(?:\n(?![ \t]+at |[ \t]*SQLSTATE: |=== |\s*$)[^\n]+)*)"
)
_FRAME = re.compile(r'[ \t]+File "([^"]+)", line \d+.*\n(?:(?![ \t]+File ").*\n)*')

#: Follows Spark's message: the JVM's stack, or a plan.
_APPENDIX = re.compile(r"\s+at |=== |JVM stacktrace|Driver stacktrace|['~+:]|\s*$")
_SQLSTATE = re.compile(r"[;. ]*SQLSTATE: \w+;?$")

_MISSING = re.compile(r"\bModuleNotFoundError: (No module named '([^']+)')$")

_EXIT = re.compile(r"^SystemExit(\(\)|: .*)?$(?!\n)", re.MULTILINE)

#: The system's errors of a full disk, anywhere in a chain of exceptions.
_DISK = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")
_SOURCE = re.compile(r"(Failed to find (?:the )?data source: (\S+))\. [^\n]*")

#: Spark's errors of an empty and of a truncated checkpoint file.
_EMPTY = re.compile(
    r"(?:Failed to read log file|Checksum error:) (?:file:)?(\S+)/(?:offsets|commits)/\d+\b"
)
_CUT_OFF = re.compile(r"Unexpected end-of-input.*Current Available Offsets: \{\}", re.DOTALL)

_CALL = re.compile(r"\A(?:py4j\.protocol\.Py4JJavaError: )?An error occurred while calling \S+\n: ")

_FOREIGN_FOLDERS = (
    *(str(Path(module.__file__ or "").parent) for module in (pyspark, py4j, stormkeeper)),
    "<frozen",
)

_FOREIGN_ARCHIVES = ("pyspark.zip", "py4j-")

_LONGEST_CHAIN = 20
_LONGEST_LINE = 300

_CAUSE_CHARACTERS = 4000

_SPARK_LINES = 6


def readable(error: BaseException) -> str:
    """Return the traceback of the user's code in an exception, or else the message's beginning.

    The traceback may be that of Spark's Python worker.
    """
    return _with_disk(_readable(error), _chain(error))


def readable_text(text: str) -> str:
    """Shorten the text of an exception from elsewhere."""
    text = without_separators(text)
    said = _with_remedy(python_traceback(text) or first_lines(text))
    empty = _EMPTY.search(text)
    if empty is not None or _CUT_OFF.search(text):
        said += f"\n{faults.broken_checkpoint(empty[1] if empty is not None else 'NAME')}"
    return _with_disk(said, text)


def _readable(error: BaseException) -> str:
    text = _text(error)
    remote = python_traceback(text)
    if remote is not None:
        return _with_remedy(remote)
    frames = own_frames(error.__traceback__)
    java = _CALL.sub("", text)
    name = type(error).__name__
    cause = f"{name}: {_shortened(first_lines(text))}" if text else f"{name}()"
    if java != text:
        cause = _shortened(first_lines(java))
    if isinstance(error, KeyError):
        cause = f"KeyError: {_shortened(text)}"
    cause = _with_remedy(cause)
    if isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(error)).rstrip()
    if not frames:
        return cause
    return "Traceback (most recent call last):\n" + "".join(frames) + cause


def log_failure(log: logging.Logger, text: str) -> None:
    """Log an error: the first line as the message, further lines unchanged below."""
    message, _, rest = text.partition("\n")
    log.handle(
        log.makeRecord(
            log.name, logging.ERROR, "", 0, message, (), None, None, None, sinfo=rest or None
        )
    )


def own_frames(tb: TracebackType | None) -> list[str]:
    frames = [f for f in traceback.extract_tb(tb) if not _is_foreign(f.filename)]
    return traceback.format_list(frames)


def python_traceback(text: str) -> str | None:
    """Return the last Python traceback, with the frames of the user's code."""
    found = _TRACEBACK.findall(text)
    if not found:
        return None
    frames: str
    cause: str
    frames, cause = found[-1]
    own = [m.group() for m in _FRAME.finditer(frames) if not _is_foreign(m.group(1))]
    cause = _shortened(_SQLSTATE.sub("", _CALL.sub("", cause.rstrip())))
    return "Traceback (most recent call last):\n" + "".join(own or [frames]) + cause


def without_folder(text: str, package: Path | None) -> str:
    if package is None:
        return text
    return text.replace(f"{package / manifest.CODE}/", "").replace(f"{package}/", "")


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as another:  # user code may define __str__
        return f"<its text cannot be had: {type(another).__name__} in __str__>"
    return without_separators(text).encode(errors="backslashreplace").decode()


def _shortened(text: str) -> str:
    """Cut the middle out of a text, for the log and ZooKeeper."""
    left_out = len(text) - _CAUSE_CHARACTERS
    if left_out <= 0:
        return text
    half = _CAUSE_CHARACTERS // 2
    return f"{text[:half]} ... {left_out} characters ... {text[-half:]}"


def first_lines(text: str) -> str:
    """Return an exception's message without stack and plan."""
    lines = []
    for line in text.strip().splitlines():
        if _APPENDIX.match(line):
            break
        lines.append(_SQLSTATE.sub("", line))
        if len(lines) == _SPARK_LINES:
            break
    return "\n".join(lines)


def _with_remedy(text: str) -> str:
    text = _SOURCE.sub(lambda found: f"{found[1]}: {faults.missing_source(found[2])}", text)
    if _EXIT.search(text):
        return (
            f"{text} (code of the topology ends the process: return, or raise an exception instead)"
        )
    missing = _MISSING.search(text)
    if missing is None:
        return text
    return text[: missing.start(1)] + faults.missing_module(missing[2], "python")


def _chain(error: BaseException) -> str:
    texts: list[str] = []
    following: BaseException | None = error
    while following is not None and len(texts) < _LONGEST_CHAIN:
        texts.append(_text(following))
        following = following.__cause__ or following.__context__
    return "\n".join(texts)


def _with_disk(text: str, chain: str) -> str:
    """Add a full disk, which may be deep in a chain, to an error's text."""
    found = _DISK.search(chain)
    if found is None:
        return text
    line = chain[chain.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0].strip()
    cause = f"{found[0]}: a disk of the worker's machine takes no more files; make room there"
    if line != found[0]:
        cause += f" ({line[:_LONGEST_LINE]})"
    return f"{text}\n{cause}" if text.startswith("Traceback ") else f"{cause}\n{text}"


def _is_foreign(file: str) -> bool:
    return file.startswith(_FOREIGN_FOLDERS) or any(name in file for name in _FOREIGN_ARCHIVES)
