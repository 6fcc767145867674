import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_disks():
    """Skip fsync: `test_table_store` checks the order of calls, and no power fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
