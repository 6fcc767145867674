from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.blobs import drafts


@pytest.mark.parametrize(
    ("data", "crc"),
    # RFC 3720, appendix B.4
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_known_values(data, crc):
    assert drafts.extend_crc32c(0, data) == crc


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_it_does_not_matter_how_the_bytes_are_cut(data, cuts):
    crc, begun = 0, 0
    for end in [*sorted(cuts), len(data)]:
        crc = drafts.extend_crc32c(crc, data[begun:end])
        begun = max(begun, end)
    assert crc == drafts.extend_crc32c(0, data)


@given(st.integers(0, 2**32), st.integers(4000, 20_000), st.integers(0, 2**32 - 1))
def test_many_bytes_at_once_are_as_few_at_a_time(seed, size, crc):
    data = Random(seed).randbytes(size)
    few = crc
    for begun in range(0, size, 1000):
        few = drafts.extend_crc32c(few, data[begun : begun + 1000])
    assert drafts.extend_crc32c(crc, data) == few
