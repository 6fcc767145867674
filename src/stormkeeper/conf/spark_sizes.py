"""Spark's settings that are sizes of memory: what each may be.

Spark is handed its settings as they are. But a size that the JVM cannot read ends it before it can
say which setting was meant, so these are looked at before.
"""

import re
from typing import Any, Final

from stormkeeper.errors import ConfigError

#: Goes to the JVM as it is, which knows fewer units than Spark, and without one counts bytes.
_HEAP: Final = "spark.driver.memory"
_HEAP_SIZE: Final = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)

#: Read by Spark; without a unit in MiB, or bytes, as each has it.
_SIZES: Final = frozenset(
    {
        "spark.driver.maxResultSize",
        "spark.driver.memoryOverhead",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.pyspark.memory",
        "spark.memory.offHeap.size",
        "spark.python.worker.memory",
    }
)
_SIZE: Final = re.compile(r"\d+(?:b|[kmgtp]b?)?", re.IGNORECASE)


def check(key: str, value: Any) -> None:
    """Check a value. Null is allowed, and so is any value of a key that is no size of memory.

    Raises
    ------
    ConfigError
        It is not allowed. The message lacks the key and the value, which the caller adds.
    """
    if value is None:
        return
    text = str(value).strip()
    if key == _HEAP and not _HEAP_SIZE.fullmatch(text):
        raise ConfigError("expected a number with k, m, g or t, such as 512m or 2g")
    if key in _SIZES and not _SIZE.fullmatch(text):
        raise ConfigError("expected a size, such as 512m or 2g")
