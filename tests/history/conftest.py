import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_disks():
    """What has to be on the disk before what: `test_store` looks at the calls; no power fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
