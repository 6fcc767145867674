import json
from pathlib import Path

import pytest

from stormkeeper.pacemaker.client.protocol import fault_of, path_of, refusal, type_name
from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.messages import (
    VERBS,
    Changes,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)
from support.messages import columns_of

VECTORS = Path(__file__).parents[2] / "vectors" / "pacemaker.jsonl"


def golden():
    return {
        record["name"]: bytes.fromhex(record["hex"])
        for record in map(json.loads, VECTORS.read_text().splitlines())
        if record["hex"]
    }


def test_every_answer_of_storm_is_an_answer_to_its_request():
    frames = golden()
    pairs = 0
    for name, frame in frames.items():
        kind, _, what = name.partition(".")
        if kind != "request" or f"response.{what}" not in frames:
            continue
        request = decode(frame[4:])
        answer = decode(frames[f"response.{what}"][4:])
        if request.type in VERBS:
            assert fault_of(request.type, answer) is None, name
            pairs += 1
    assert pairs >= 8


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        (MessageType.EXISTS, Message(MessageType.EXISTS_RESPONSE), "without its boolval"),
        (MessageType.GET_PULSE, Message(MessageType.GET_PULSE_RESPONSE), "without its pulse"),
        (
            MessageType.GET_PULSE,
            Message(MessageType.EXISTS_RESPONSE, boolval=True),
            "EXISTS_RESPONSE came as the answer to GET_PULSE",
        ),
        (MessageType.SEND_PULSE, Message(77), "type 77 came"),
        (MessageType.SEND_PULSE, Message(None), "type None came"),
        (MessageType.GET_ALL_NODES_FOR_PATH, Message(9, nodes=None), "without its nodes"),
        (MessageType.CHANGES, Message(101), "without its changes"),
    ],
)
def test_a_wrong_answer_is_named(kind, answer, words):
    assert words in fault_of(kind, answer)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (MessageType.GET_ALL_PULSE_FOR_PATH, Message(7)),
        (MessageType.GET_ALL_PULSE_FOR_PATH, Message(7, records=[])),
        (MessageType.GET_ALL_NODES_FOR_PATH, Message(9, nodes=[])),
        (MessageType.EXISTS, Message(3, boolval=False)),
        (MessageType.EXISTS, Message(18)),
        (
            MessageType.CHANGES,
            Message(101, changes=Changes("i", 1, columns_of([]), False, False, 1)),
        ),
    ],
)
def test_a_right_answer_is_none(kind, answer):
    assert fault_of(kind, answer) is None


def test_a_response_and_a_control_message_are_no_requests():
    for kind in (None, 1, 16, 17, 18, 101, 5000):
        assert kind not in VERBS


def test_the_subject_is_the_path_wherever_it_stands():
    assert path_of(Message(10, path="/a")) == "/a"
    assert path_of(Message(4, pulse=Pulse("/b", b""))) == "/b"
    assert path_of(Message(100, changes_request=ChangesRequest("/c", 0, 0, None))) == "/c"


def test_a_refusal_says_who_what_and_the_remedy():
    text = str(refusal("p:1", MessageType.GET_PULSE, "/a", None))
    assert text.startswith("p:1 refused a request to read /a")
    assert "pacemaker.auth.method" in text
    assert "java.security.auth.login.config" in text
    assert "log" in str(refusal("p:1", MessageType.SEND_PULSE, "/a", None))
    assert type_name(10) == "GET_PULSE"


def test_a_refused_read_has_both_causes_unless_one_is_known():
    method, limit = "pacemaker.auth.method", "the path or the answer exceeds a limit"
    for method_of_client, reads, named in [
        (None, None, {method, limit}),
        (None, True, {limit}),
        (None, False, {method}),
        ("DIGEST", None, {limit}),
    ]:
        text = str(refusal("p:1", MessageType.GET_PULSE, "/a", method_of_client, reads=reads))
        assert {words for words in (method, limit) if words in text} == named
        assert ("the server's log has the reason" in text) is (limit in named)
