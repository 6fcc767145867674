"""Which paths are good, and how much memory a process may have."""

import os

import pytest

from stormkeeper.conf import load
from stormkeeper.pacemaker.server.store_limits import LimitError, StoreLimits, memory_allowed


def test_sizes():
    limits = StoreLimits(path_bytes=8, path_segments=3)
    for path in [b"", b"/", b"/a/b/c", b"a/b/c", b"/a/b/", "/測測".encode(), b"/123/567"]:
        limits.check_size(path)
    for path, complaint in [
        (b"/a/b/c/", "4 segments"),
        (b"a/b/c/d", "4 segments"),
        ("/測測測".encode(), "10 bytes"),
        (b"/" + b"x" * 10_000, "10001 bytes"),
    ]:
        with pytest.raises(LimitError, match=complaint) as refused:
            limits.check_size(path)
        assert refused.value.cause == "path"
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize("path", [b"/a b", "/tö-測-\U0001f600/\xa0".encode(), b"/~", b"/.*[", b""])
def test_text(path):
    StoreLimits().check_text(path)


@pytest.mark.parametrize(
    "path",
    [
        *(b"/%c" % control for control in [*range(32), 127]),
        *(f"/{chr(control)}".encode() for control in range(0x80, 0xA0)),
        b"/\xff",
        b"/\x80",
        b"/\xc0\xaf",
        b"/\xed\xa0\x80",
        b"/\xc3",
    ],
)
def test_path_without_text_is_refused_and_shown_escaped(path):
    with pytest.raises(LimitError) as refused:
        StoreLimits().check_text(path)
    assert refused.value.cause == "path"
    assert str(refused.value).isprintable()
    assert str(refused.value).isascii()


def test_limits_come_from_the_configuration():
    conf = dict(load(overrides=["pacemaker.store.max.bytes=5", "pacemaker.path.max.bytes=7"]))
    quarter = memory_allowed() // 4
    expected = StoreLimits(store_bytes=5, index_bytes=quarter, path_bytes=7, path_segments=16)
    assert StoreLimits.of(conf) == expected
    conf["pacemaker.store.max.bytes"] = None
    assert StoreLimits.of(conf).store_bytes == memory_allowed() // 2 > 0
    conf["pacemaker.store.max.bytes"] = 0
    assert (StoreLimits.of(conf).store_bytes, StoreLimits.of(conf).index_bytes) == (0, 0)


def test_a_control_group_leaves_less_memory(tmp_path):
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    assert memory_allowed(proc, groups) <= machine
    for line, file, text in [
        ("0::/a/b", "a/b/memory.max", "5000000"),
        ("0::/a/b", "a/memory.max", "4000000"),
        ("0::/", "memory.max", "4500000"),
        ("3:cpu,memory:/a/b", "memory/a/memory.limit_in_bytes", "4100000"),
        ("0::/a/b", "a/b/memory.max", "max"),
    ]:
        (proc / "self" / "cgroup").write_text(f"1:name=systemd:/x\n{line}\n")
        place = groups / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
        expected = int(text) if text != "max" else machine
        assert memory_allowed(proc, groups) == min(expected, memory_allowed())
        place.unlink()
