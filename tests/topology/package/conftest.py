import pytest


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The only place from which pip takes packages, as its own configuration says."""
    place = tmp_path / "index"
    place.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    return place
