"""Whether tables are still written: whoever reads old ones is told so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from stormkeeper.cli.durations import duration

if TYPE_CHECKING:
    from stormkeeper.history.database import Past

#: What is older than so many times the pipeline's interval is old, and after so many seconds at
#: least.
_INTERVALS: Final = 4
_LEAST_SECS: Final = 60.0


def limit_secs(interval_secs: float) -> float:
    """Return from which age on something is old that is written at this interval."""
    return max(_INTERVALS * interval_secs, _LEAST_SECS)


def age_of(written_at: datetime, interval_secs: float) -> str | None:
    """Say how old tables are that are to be written at this interval, None if they are not old."""
    age = (datetime.now(UTC) - written_at).total_seconds()
    if age <= limit_secs(interval_secs):
        return None
    return (
        f"these tables are {duration(int(age))} old, where the pipeline writes them every"
        f" {interval_secs:g} s: does `storm pipeline` run?"
    )


def remark_on_age(past: Past, name: str) -> bool:
    """Say on stderr if a table has not been written for long; return whether that is so."""
    said = age_of(past.written_at(name), past.interval_secs(name))
    if said is not None:
        click.echo(f"storm: {said}", err=True)
    return said is not None
