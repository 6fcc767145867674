"""How long: as a person says it."""

from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 3_600
_DAY: Final = 86_400


def duration(secs: int) -> str:
    """Return seconds as a person says them.

    Examples
    --------
    >>> duration(59), duration(61), duration(7_260), duration(90_000)
    ('59 s', '1 min 1 s', '2 h 1 min', '1 d 1 h')
    """
    for unit, name, below, part in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if secs >= unit:
            return f"{secs // unit} {name} {secs % unit // below} {part}"
    return f"{secs} s"
