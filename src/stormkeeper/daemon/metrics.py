"""Pages of metrics and health for all daemons, and the metrics of a process.

prometheus-client's collector of processes lists open files, which stops a daemon with thousands of
connections for several milliseconds.
"""

import os
import resource
from collections.abc import Callable, Iterator
from typing import Final

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page

_FILES: Final = "/proc/self/fd"


def metrics_page(*collectors: Collector) -> Callable[[str], Page]:
    """Return a page of metrics, also of this process, in the format that a client accepts."""
    # A registry of our own adds no exemplars and no creation times.
    registry = CollectorRegistry(auto_describe=False)
    for collector in (*collectors, ProcessMetrics()):
        registry.register(collector)

    def page(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(200, encode(registry), content_type)

    return page


def health_page(find_fault: Callable[[], str | None], healthy: str = "ok") -> Callable[[str], Page]:
    """Return a page with status 200 and `healthy`, or with status 503 and the fault."""

    def page(_: str) -> Page:
        fault = find_fault()
        return Page(200 if fault is None else 503, f"{fault or healthy}\n".encode())

    return page


class ProcessMetrics(Collector):
    """Memory, CPU time, open files and start time of this process, by Prometheus's usual names."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration reads nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the figures, in 0.5 ms, however many files are open."""
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
            started = self._process.create_time()
        yield CounterMetricFamily(
            "process_cpu_seconds",
            "Processor time spent, in user and system mode.",
            times.user + times.system,
        )
        yield GaugeMetricFamily(
            "process_start_time_seconds", "When the process began, since the epoch.", started
        )
        yield GaugeMetricFamily(
            "process_virtual_memory_bytes", "Size of the address space.", memory.vms
        )
        yield GaugeMetricFamily(
            "process_resident_memory_bytes", "Memory that is resident.", memory.rss
        )
        yield GaugeMetricFamily("process_open_fds", "Open file descriptors.", open_files())
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield GaugeMetricFamily(
            "process_max_fds",
            "File descriptors that may be open.",
            float("inf") if soft == resource.RLIM_INFINITY else soft,
        )


def open_files() -> int:
    """Return the number of this process's open descriptors."""
    # From Linux 6.2 on, the size of the directory is their number.
    return os.stat(_FILES).st_size or len(os.listdir(_FILES)) - 1  # noqa: PTH116, PTH208
