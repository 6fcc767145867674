"""What of a folder stays behind."""

import os
import socket

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.package import code
from support.packages import tree


def travelling(folder):
    return [
        file.relative_to(folder).as_posix() for file in code.walk(folder, code.read_ignored(folder))
    ]


def test_always_ignored_files(tmp_path):
    tree(
        tmp_path,
        {
            "job.py": "",
            "data/words.txt": "",
            "data/.secret": "",
            ".env": "",
            ".git/config": "",
            "__pycache__/job.pyc": "",
            "package/__pycache__/x.pyc": "",
            "package/x.py": "",
            "spark-warehouse/part": "",
            "env/pyvenv.cfg": "",
            "env/lib/x.py": "",
        },
    )
    assert travelling(tmp_path) == ["data/words.txt", "job.py", "package/x.py"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("*.csv", ["a/b/c.py", "a/d", "e.py"]),
        ("e.*", ["a/b/c.csv", "a/b/c.py", "a/d"]),
        ("/e.csv", ["a/b/c.csv", "a/b/c.py", "a/d", "e.py"]),
        ("a/*.py", ["a/b/c.csv", "a/d", "e.csv", "e.py"]),
        ("b", ["a/d", "e.csv", "e.py"]),
        ("b/", ["a/d", "e.csv", "e.py"]),
        ("a/b/", ["a/d", "e.csv", "e.py"]),
        ("d/", ["a/b/c.csv", "a/b/c.py", "a/d", "e.csv", "e.py"]),
        ("[ab]", ["e.csv", "e.py"]),
        ("# a", ["a/b/c.csv", "a/b/c.py", "a/d", "e.csv", "e.py"]),
        ("  d  \n\n*.py", ["a/b/c.csv", "e.csv"]),
        ("E.PY", ["a/b/c.csv", "a/b/c.py", "a/d", "e.csv", "e.py"]),
    ],
)
def test_what_the_user_leaves_behind(tmp_path, pattern, left):
    names = ["a/b/c.py", "a/b/c.csv", "a/d", "e.py", "e.csv"]
    tree(tmp_path, dict.fromkeys(names, "") | {".stormignore": pattern})
    assert travelling(tmp_path) == left


def test_a_pattern_that_is_taken_back(tmp_path):
    tree(tmp_path, {".stormignore": "*.csv\n!a.csv\n"})
    with pytest.raises(TopologyError, match=r"\.stormignore, line 2: .* cannot be taken back"):
        travelling(tmp_path)


def test_patterns_that_are_no_text(tmp_path):
    tree(tmp_path, {".stormignore": b"\xff"})
    with pytest.raises(TopologyError, match=r"\.stormignore cannot be read"):
        travelling(tmp_path)


def test_link_within_is_sent_as_its_target(tmp_path):
    tree(tmp_path, {"data/a": "text"})
    (tmp_path / "b").symlink_to("data/a")
    assert travelling(tmp_path) == ["b", "data/a"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("../outside", "a link to .*outside, outside of"),
        ("data", "a link to a folder"),
        ("gone", "neither a file nor a folder"),
    ],
)
def test_a_link_that_leads_elsewhere(tmp_path, target, said):
    tree(tmp_path, {"outside": "", "folder/data/a": ""})
    (tmp_path / "folder" / "link").symlink_to(target)
    with pytest.raises(TopologyError, match=f"link is {said}.* name it in .stormignore"):
        travelling(tmp_path / "folder")
    tree(tmp_path, {"folder/.stormignore": "link"})
    assert travelling(tmp_path / "folder") == ["data/a"]


def test_a_socket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # whose own path may be too long for one
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(TopologyError, match="neither a file nor a folder"):
            travelling(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o000)
    with pytest.raises(TopologyError, match="closed cannot be read: Permission denied"):
        travelling(tmp_path)
