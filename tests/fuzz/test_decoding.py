"""Heartbeats that are nearly right: both engines make of them the rows that their records say."""

from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.mutations import EXAMPLES, payloads
from stormkeeper.thrift.serialization import Compression, Release, serialize
from support.decoding import ENGINES, any_heartbeat, by_records, rows_of
from support.heartbeats import bolt, heartbeat, spout

#: Long enough that most changes fall where it matters, and short enough to be quick.
_BOLT: Final = bolt({("words", "default"): 9, ("words", "sécond"): 2}, 4)
_BOLT.component, _BOLT.partial_batches = "count", {"600": 1}
CORPUS: Final = [
    *(serialize(any_heartbeat(seed), Compression.PLAIN) for seed in range(40)),
    *(
        heartbeat("t-1-1", {(1, 1): spout(7), (2, 4): _BOLT}, completed=True, release=release)
        for release in Release
    ),
    *(
        serialize(any_heartbeat(seed), compression)
        for seed in (1, 2)
        for compression in Compression
    ),
]


@settings(
    max_examples=max(1, EXAMPLES // 5),  # each is some heartbeats, read three times
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(payloads(CORPUS), min_size=1, max_size=4))
def test_any_bytes_are_the_rows_that_records_say(values: list[bytes]) -> None:
    expected = [by_records(value) for value in values]
    for name in ENGINES:
        assert rows_of(values, name) == expected
