"""A run's folder goes with the run."""

from pathlib import Path

import pytest

from stormkeeper.errors import LocalClusterError
from stormkeeper.local import reservations
from stormkeeper.local.reservations import make_run_folder


def test_a_folder_goes_at_the_end_with_all_that_is_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(reservations.tempfile, "tempdir", str(tmp_path))
    with make_run_folder() as folder:
        Path(folder, "data").mkdir()
        Path(folder, "data", "file").write_text("")
    assert list(tmp_path.iterdir()) == []


def test_without_a_place_for_it_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(reservations.tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(LocalClusterError, match=r"No such file or directory.*: set TMPDIR to"):
        make_run_folder()
    monkeypatch.setattr(reservations.tempfile, "tempdir", None)
    monkeypatch.setattr(reservations.tempfile, "_candidate_tempdir_list", lambda: [])
    with pytest.raises(LocalClusterError, match=r"No usable temporary directory.*: set TMPDIR to"):
        make_run_folder()
