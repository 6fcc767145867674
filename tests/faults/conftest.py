"""The long form of each fault test runs only where it is asked for: ``make faults``."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "faults: the long form; `make faults` runs it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "faults" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("faults")])
        items[:] = [item for item in items if not item.get_closest_marker("faults")]
