"""What is nearly right: the corpus, cut, spliced, flipped and repeated by hypothesis."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from support.messages import i32

#: Payloads of frames: Storm's own, ours, and bad ones. What once broke something is added here.
CORPUS: Final = [
    bytes.fromhex(json.loads(line)["hex"])
    for line in Path(__file__).with_name("corpus.jsonl").read_text().splitlines()
]

#: Examples of each fuzz test; ``make fuzz`` runs many more than CI does.
EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", "500"))

#: Numbers at which lengths, counts and types change their meaning.
_EDGES: Final = st.sampled_from(
    [
        0,
        1,
        -1,
        2,
        15,
        16,
        17,
        18,
        100,
        101,
        102,
        103,
        104,
        105,
        106,
        107,
        127,
        128,
        255,
        2**15,
        2**31 - 1,
        -(2**31),
    ]
)


@st.composite
def payloads(draw: st.DrawFn, corpus: Sequence[bytes] = CORPUS) -> bytes:
    """One frame's payload, or what else is in a corpus, up to a few changes away from one there."""
    data = bytearray(draw(st.sampled_from(corpus)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(["flip", "edge", "cut", "insert", "splice", "repeat"]))
        if change == "flip" and place < len(data):
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif change == "edge":
            data[place : place + 4] = i32(draw(_EDGES))
        elif change == "cut":
            del data[place : place + draw(st.integers(1, 12))]
        elif change == "insert":
            data[place:place] = draw(st.binary(max_size=8))
        elif change == "splice":
            other = draw(st.sampled_from(corpus))
            data[place:] = other[draw(st.integers(0, len(other))) :]
        elif change == "repeat":
            size = draw(st.integers(1, 40))
            data[place:place] = data[place : place + size] * draw(st.integers(1, 3))
    return bytes(data)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """What a client sends, in the pieces in which it arrives; most lengths are true."""
    data = bytearray()
    for payload in draw(st.lists(payloads(), min_size=1, max_size=6)):
        lies = draw(st.integers(0, 9)) == 0
        data += i32(draw(_EDGES) if lies else len(payload)) + payload
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
