from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.client.calls import with_message_id
from stormkeeper.pacemaker.wire import ChangesRequest, Message, MessageType, Pulse, encode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages = st.one_of(
    st.builds(Message, st.sampled_from([0, 2, 6, 8, 10, 12, 14]), path=texts),
    st.builds(Message, st.just(MessageType.SEND_PULSE), pulse=st.builds(Pulse, texts, st.binary())),
    st.builds(
        Message,
        st.just(MessageType.CHANGES),
        changes_request=st.builds(
            ChangesRequest, texts, st.integers(0, 2**63 - 1), st.integers(0, 99), st.none() | texts
        ),
    ),
)
ids = st.integers(0, 2**31 - 1)


@given(messages, ids, ids)
def test_another_id_makes_the_frame_that_encoding_makes(message, first, second):
    frame = encode(replace(message, message_id=first))
    assert with_message_id(frame, second) == encode(replace(message, message_id=second))
