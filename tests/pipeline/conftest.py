import pytest

from stormkeeper.daemon import spark as engine
from support.pacemaker import pacemaker, start_pacemaker  # noqa: F401


@pytest.fixture(scope="session")
def spark():
    """One Spark session for all tests of the room; starting it takes seconds."""
    session = engine.session(
        {"spark.master": "local[2]", "spark.sql.session.timeZone": "Asia/Kolkata"},
        "tests of the pipeline",
    )
    yield session
    engine.end(session)
