"""CRC-32C (RFC 3720, appendix B.4), which Storm's Nimbus has for the version of a blob.

Storm's clients compare it with that of their copy, and so it has to be the same on every Nimbus.
Nothing here relies on it: SHA-256 says what is in a blob. Only what a client uploads is counted,
and only once.

A step for each byte would take Python seconds for a large package. So the bytes are counted in
lanes, all of them by the same few calls: a lane is `_LANE` bytes in a row, and a call takes one
byte of each. That is right since the CRC is linear: the register after two pieces is that of the
first, shifted by as many zeros as the second has bytes, xor that of the second alone.
"""

from functools import cache
from typing import Final

#: The polynomial, its bits reversed.
_POLYNOMIAL: Final = 0x82F63B78

#: Bytes of a lane, and the least number of lanes that are worth the trouble.
_LANE: Final = 256
_LANES: Final = 16


def extend(crc: int, data: bytes) -> int:
    """Return the CRC of what `crc` is of, followed by `data`; that of nothing is 0.

    Examples
    --------
    >>> hex(extend(extend(0, b"1234"), b"56789"))
    '0xe3069283'
    """
    register = crc ^ 0xFFFFFFFF
    whole = len(data) // _LANE
    if whole < _LANES:
        return _by_byte(register, data) ^ 0xFFFFFFFF
    zeros = _zeros()
    for lane in _by_lane(data, whole):
        register = (
            zeros[0][register & 0xFF]
            ^ zeros[1][register >> 8 & 0xFF]
            ^ zeros[2][register >> 16 & 0xFF]
            ^ zeros[3][register >> 24]
            ^ lane
        )
    return _by_byte(register, data[whole * _LANE :]) ^ 0xFFFFFFFF


def _by_byte(register: int, data: bytes) -> int:
    table = _table()
    for byte in data:
        register = (register >> 8) ^ table[(register ^ byte) & 0xFF]
    return register


def _by_lane(data: bytes, count: int) -> list[int]:
    """Return the register of each of the first `count` lanes, from a register of 0."""
    parts = _parts()
    #: The registers' lowest bytes, one of each lane, then the next ones, and so on.
    lowest = lower = higher = highest = 0
    for first in range(_LANE):
        column = int.from_bytes(data[first : count * _LANE : _LANE], "little")
        index = (lowest ^ column).to_bytes(count, "little")
        lowest = lower ^ int.from_bytes(index.translate(parts[0]), "little")
        lower = higher ^ int.from_bytes(index.translate(parts[1]), "little")
        higher = highest ^ int.from_bytes(index.translate(parts[2]), "little")
        highest = int.from_bytes(index.translate(parts[3]), "little")
    columns = [each.to_bytes(count, "little") for each in (lowest, lower, higher, highest)]
    return [int.from_bytes(lane, "little") for lane in map(bytes, zip(*columns, strict=True))]


@cache
def _table() -> tuple[int, ...]:
    """Return what a byte makes of a register of 0."""
    table = []
    for register in range(256):
        for _ in range(8):
            register = (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)  # noqa: PLW2901
        table.append(register)
    return tuple(table)


@cache
def _parts() -> tuple[bytes, ...]:
    """Return `_table` as four tables of bytes, the lowest byte's first."""
    return tuple(bytes(each >> shift & 0xFF for each in _table()) for shift in (0, 8, 16, 24))


@cache
def _zeros() -> tuple[tuple[int, ...], ...]:
    """Return what a lane of zeros makes of a register, by each of its bytes, the lowest first."""
    zeros = bytes(_LANE)
    return tuple(
        tuple(_by_byte(byte << shift, zeros) for byte in range(256)) for shift in (0, 8, 16, 24)
    )
