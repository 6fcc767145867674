"""How large a package may be."""

import pytest

from stormkeeper.topology.package.manifest import FREE_BYTES, MAX_BYTES, MAX_FILES, limit_fault


@pytest.mark.parametrize(
    ("files", "unpacked", "packed"),
    [
        (1, 0, 0),
        (MAX_FILES, MAX_BYTES, MAX_BYTES),
        (1, FREE_BYTES, 1),
        (1, FREE_BYTES * 10, FREE_BYTES // 10 + 1),
        (1, MAX_BYTES, None),
    ],
)
def test_what_is_not_too_much(files, unpacked, packed):
    assert limit_fault(files, unpacked, packed) is None


@pytest.mark.parametrize(
    ("files", "unpacked", "packed", "said"),
    [
        (MAX_FILES + 1, 0, 0, "it has 10,001 files, and may have 10,000"),
        (1, MAX_BYTES + 1, None, "its files have 2,000,000,001 bytes, and may have 2,000,000,000"),
        (1, FREE_BYTES + 1, 1, "may have 100 times the 1 bytes of the zip"),
        (1, FREE_BYTES * 10 + 100, FREE_BYTES // 10, "may have 100 times the 1,677,721 bytes"),
    ],
)
def test_what_is_too_much(files, unpacked, packed, said):
    assert said in limit_fault(files, unpacked, packed)
