"""Each verb's answer, Storm's to the byte."""

import pytest

from stormkeeper.errors import NotAuthorizedError, RemoteProtocolError
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.request_handler import (
    RequestHandler,
    ServerDescription,
)
from stormkeeper.pacemaker.server.store_limits import LimitError, StoreLimits
from stormkeeper.pacemaker.wire.binary import STRING, STRUCT
from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import (
    RESERVED_PATH,
    TOMBSTONE,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)
from stormkeeper.thrift.pacemaker import ServerInfo
from stormkeeper.thrift.serialization import deserialize
from support.messages import field, golden_frames, rows_of, string

STATUS = ServerDescription("instance", 1, 2, "0.1.0", 3, 4, 5, 6)


class Desk:
    """An handler with a store and a hand-driven clock."""

    def __init__(self, **limits):
        self.now = 0.0
        self.store = PulseStore(PulseIndex(), "instance", lambda: self.now)
        self.handler = RequestHandler(self.store, lambda: STATUS, **limits)

    def ask(self, kind, message_id=1, **data):
        frame = self.handler.answer(encode(Message(kind, message_id, **data))[4:])
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        return decode(frame[4:])

    def send(self, path, details=b"pulse"):
        self.ask(MessageType.SEND_PULSE, pulse=Pulse(path, details))


@pytest.fixture
def desk():
    return Desk()


def test_a_frame_may_be_larger_than_storms_default():
    desk, large = Desk(max_size=12_000_000), bytes(11_000_000)
    desk.store.put(b"/large", large)
    assert desk.ask(MessageType.GET_PULSE, path="/large").pulse.details == large


def in_no_order(message):
    if message.nodes is not None:
        message.nodes.sort()
    return message


def test_storms_conversation_gets_storms_answers(desk):
    golden = {golden.name: golden for golden in golden_frames()}
    asked = 0
    # As the vectors were made: a second topology, whose request is not among them.
    desk.send("/workerbeats/t\u00f6p-\u6e2c-\U0001f600/a")
    for name, request in golden.items():
        if not name.startswith("request."):
            continue
        answer = desk.handler.answer(request.frame[4:])
        verb = name.removeprefix("request.")
        expected = golden[f"response.{verb}"]
        if verb == "get_all_pulse_for_path":
            assert decode(answer[4:]).records  # which Storm's Pacemaker leaves out
        elif verb == "not_authorized":
            pass  # made by a server that wants authentication
        elif verb == "get_all_nodes_for_path":
            assert in_no_order(decode(answer[4:])) == in_no_order(expected.message)
            assert len(answer) == len(expected.frame)
        else:
            assert answer == expected.frame, verb
            asked += 1
    assert asked == 11


def test_a_value_is_kept_as_it_is_even_an_empty_one(desk):
    for details in (b"", b"\x00\xff", bytes(100_000)):
        desk.send("/a", details)
        assert desk.ask(MessageType.GET_PULSE, path="/a").pulse == Pulse("/a", details)
    assert desk.ask(MessageType.GET_PULSE, path="/b").pulse == Pulse("/b", None)
    assert desk.ask(MessageType.GET_PULSE, path="/a/").pulse == Pulse("/a/", None)


def test_exists_is_about_the_exact_key(desk):
    desk.send("/a/b")
    answers = {path: desk.ask(MessageType.EXISTS, path=path).boolval for path in ("/a/b", "/a", "")}
    assert answers == {"/a/b": True, "/a": False, "": False}


def test_create_path_stores_nothing(desk):
    assert desk.ask(MessageType.CREATE_PATH, path="/a") == Message(1, 1)
    assert desk.store.index.keys == 0


def test_children_go_by_segments(desk):
    for path in ("/wc-1/a", "/wc-1/b/c", "/wc-17/d", "/wc-1.x"):
        desk.send(path)
    assert sorted(desk.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/wc-1").nodes) == ["a", "b"]
    assert desk.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/wc-1/b/").nodes == ["c"]
    assert desk.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/wc-.").nodes == []
    top = desk.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/").nodes
    assert sorted(top) == ["wc-1", "wc-1.x", "wc-17"]


def test_deletions(desk):
    for path in ("/a", "/a/b", "/a/b/c", "/ab"):
        desk.send(path)
    assert desk.ask(MessageType.DELETE_PULSE_ID, path="/a/b") == Message(15, 1)
    assert desk.ask(MessageType.EXISTS, path="/a/b/c").boolval
    assert desk.ask(MessageType.DELETE_PATH, path="/a") == Message(13, 1)
    assert [entry.path for entry in desk.store.pulses(b"/")] == [b"/ab"]
    assert desk.ask(MessageType.DELETE_PATH, path="/never") == Message(13, 1)


def test_all_pulses_at_and_below_a_path(desk):
    desk.send("/a", b"1")
    desk.send("/a/b/c", b"")
    desk.send("/ab", b"3")
    answer = desk.ask(MessageType.GET_ALL_PULSE_FOR_PATH, path="/a")
    assert answer == Message(7, 1, records=[Pulse("/a", b"1"), Pulse("/a/b/c", b"")])
    assert desk.ask(MessageType.GET_ALL_PULSE_FOR_PATH, path="/none").records == []


def test_all_pulses_that_do_not_fit_a_frame_are_no_data():
    desk = Desk(max_size=1_000)
    for n in range(8):
        desk.send(f"/{n}", bytes(100))
    fitting = desk.ask(MessageType.GET_ALL_PULSE_FOR_PATH, path="/")
    assert len(fitting.records) == 8
    desk.send("/9", bytes(50))
    assert desk.ask(MessageType.GET_ALL_PULSE_FOR_PATH, path="/") == Message(7, 1)


def test_held_returns_pulse_tombstone_or_nothing(desk):
    def held(path):
        answer = desk.ask(MessageType.HELD, path=path)
        assert answer.type == MessageType.HELD_RESPONSE
        return [(c.path, c.details, c.revision) for c in rows_of(answer.changes.columns)]

    desk.send("/w/a", b"1")
    desk.send("/w/a/below", b"2")
    assert held("/w/a") == [("/w/a", b"1", 1)]
    assert held("/w") == held("/w/a/") == held(RESERVED_PATH) == []
    desk.ask(MessageType.DELETE_PULSE_ID, path="/w/a")
    assert held("/w/a") == [("/w/a", None, 3)]


def test_the_names_below_which_pulses_were_deleted(desk):
    def deleted(path):
        answer = desk.ask(MessageType.DELETED, path=path)
        assert answer.type == MessageType.DELETED_RESPONSE
        return answer.nodes

    for path in ("/w/t/1", "/w/t/2", "/w/u/1", "/w/v"):
        desk.send(path, b"")
    assert deleted("/") == deleted("/w") == []
    desk.ask(MessageType.DELETE_PULSE_ID, path="/w/t/1")
    desk.ask(MessageType.DELETE_PATH, path="/w/v")
    assert deleted("/") == ["w"]
    assert sorted(deleted("/w/")) == ["t", "v"]
    assert deleted("/w/t") == ["1"]
    desk.send("/w/t/1", b"again")
    assert deleted("/w") == ["v"]


def test_reserved_path_describes_the_server(desk):
    pulse = desk.ask(MessageType.GET_PULSE, path=RESERVED_PATH).pulse
    info = deserialize(ServerInfo, pulse.details)
    assert pulse.id == RESERVED_PATH
    assert info.extensions == ["changes", "held", "deleted", "sizes"]
    numbers = [info.uptime_ms, info.horizon_ms, info.revision, info.keys]
    assert [info.instance, info.version, *numbers] == ["instance", "0.1.0", 1, 2, 3, 4]
    assert [info.pulses_received, info.connections] == [5, 6]
    assert desk.ask(MessageType.GET_PULSE, path=f"{RESERVED_PATH}/x").pulse.details is None
    assert desk.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/").nodes == []
    assert desk.ask(MessageType.GET_ALL_PULSE_FOR_PATH, path=RESERVED_PATH).records == []


@pytest.mark.parametrize("path", [RESERVED_PATH, f"{RESERVED_PATH}/", f"{RESERVED_PATH}/x"])
@pytest.mark.parametrize("verb", ["CREATE_PATH", "SEND_PULSE", "DELETE_PATH", "DELETE_PULSE_ID"])
def test_nothing_is_written_at_or_below_the_reserved_path(desk, path, verb):
    data = {"pulse": Pulse(path, b"x")} if verb == "SEND_PULSE" else {"path": path}
    with pytest.raises(NotAuthorizedError, match=f"{verb}: '{path}': .*reserved") as refused:
        desk.ask(MessageType[verb], 9, **data)
    assert refused.value.cause == "reserved"
    assert decode(refused.value.answer[4:]) == Message(MessageType.NOT_AUTHORIZED, 9)
    assert desk.store.index.revision == 0


def test_path_beside_reserved_path_is_free(desk):
    desk.send(f"{RESERVED_PATH}s")
    assert desk.ask(MessageType.DELETE_PATH, path="/") == Message(13, 1)
    assert desk.store.index.keys == 0
    assert desk.ask(MessageType.GET_PULSE, path=RESERVED_PATH).pulse.details is not None


@pytest.mark.parametrize("kind", [MessageType.CONTROL_MESSAGE, MessageType.SASL_MESSAGE_TOKEN])
def test_unexpected_authentication_names_the_remedy(desk, kind):
    with pytest.raises(RemoteProtocolError, match=r"pacemaker\.auth\.method"):
        desk.ask(kind, blob=b"\xff\x36")


def test_changes_are_paged_within_a_frame():
    desk = Desk(max_size=1_000)
    for n in range(20):
        desk.now = n
        desk.send(f"/{n:02}", bytes(100))
    desk.now = 30.0
    seen, after, instance = [], 0, None
    while True:
        request = ChangesRequest("/", after, 0, instance)
        page = desk.ask(MessageType.CHANGES, changes_request=request).changes
        seen += rows_of(page.columns)
        after, instance = page.next, page.instance
        if not page.more:
            break
        assert 1 <= len(page.columns.paths) <= 7
    assert [(change.path, change.revision, change.age_ms) for change in seen] == [
        (f"/{n:02}", n + 1, (30 - n) * 1000) for n in range(20)
    ]
    desk.ask(MessageType.DELETE_PULSE_ID, path="/07")
    request = ChangesRequest("/", after, 5, instance)
    page = desk.ask(MessageType.CHANGES, changes_request=request).changes
    assert (page.columns.paths, page.columns.details) == (["/07"], [None])


REQUESTS = [kind for kind in MessageType if kind.value in (*range(0, 15, 2), 100, 104, 106)]


def about(kind, path):
    """The data of a request of that kind that names `path`."""
    if kind is MessageType.SEND_PULSE:
        return {"pulse": Pulse(path, b"x")}
    if kind is MessageType.CHANGES:
        return {"changes_request": ChangesRequest(path, 0, 0, None)}
    return {"path": path}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_path_that_exceeds_a_limit_is_refused(desk, kind):
    for at_most, too_much, complaint in [
        ("/a" * 16, "/a" * 17, "17 segments"),
        ("/" + "a" * 1_023, "/" + "a" * 1_024, "1025 bytes"),
    ]:
        desk.ask(kind, **about(kind, at_most))
        with pytest.raises(LimitError, match=complaint) as refused:
            desk.ask(kind, 9, **about(kind, too_much))
        assert refused.value.cause == "path"
        assert decode(refused.value.answer[4:]) == Message(MessageType.NOT_AUTHORIZED, 9)


@pytest.mark.parametrize("kind", REQUESTS)
def test_pulse_of_larger_limits_can_be_read_and_deleted(desk, kind):
    desk.store.set_limits(StoreLimits(path_segments=20))
    desk.send("/a" * 20)
    desk.store.set_limits(StoreLimits())
    desk.ask(kind, **about(kind, "/a" * 20))


@pytest.mark.parametrize("wrapping", [b"", field(STRING, 9, string("later"))])
@pytest.mark.parametrize("path", [b"/a\xff", b"/a\x00", b"/\x7f", b"/\xc2\x85", b"/\xed\xa0\x80"])
def test_a_path_of_no_text_is_refused_and_the_connection_goes_on(desk, path, wrapping):
    def as_sent(kind):
        placeholder = "/" + "x" * (len(path) - 1)
        payload = encode(Message(kind, 5, **about(kind, placeholder)))[4:]
        return wrapping + payload.replace(placeholder.encode(), path)

    for kind in REQUESTS:
        with pytest.raises(LimitError) as refused:
            desk.handler.answer(as_sent(kind))
        assert refused.value.cause == "path"
        assert decode(refused.value.answer[4:]) == Message(MessageType.NOT_AUTHORIZED, 5)
    assert desk.store.index.keys == 0


def test_full_store_refuses_new_and_growing_pulses():
    desk = Desk()
    desk.store.set_limits(StoreLimits(store_bytes=1_000))
    desk.send("/a", bytes(498))
    desk.send("/b", bytes(498))
    for path, size in [("/c", 0), ("/a", 499)]:
        with pytest.raises(LimitError, match=r"pacemaker\.store\.max\.bytes") as refused:
            desk.send(path, bytes(size))
        assert refused.value.cause == "store-full"
        assert f" for '{path}' would exceed" in str(refused.value)
    desk.send("/a", bytes(400))
    desk.send("/c", bytes(96))
    assert desk.store.index.bytes_held == 1_000
    assert desk.ask(MessageType.GET_PULSE, path="/b").pulse.details == bytes(498)


def test_many_small_pulses_fill_the_store():
    desk = Desk()
    desk.store.set_limits(StoreLimits(store_bytes=1_000_000, index_bytes=6_000))
    paths = [f"/{number}" for number in range(21)]
    for path in paths[:20]:
        desk.send(path, b"")
    with pytest.raises(LimitError, match="the index needs") as refused:
        desk.send(paths[20], b"")
    assert refused.value.cause == "store-full"
    assert f" for '{paths[20]}', more than" in str(refused.value)
    desk.send(paths[0], bytes(1_000))
    for path in paths[:10]:
        desk.ask(MessageType.DELETE_PATH, path=path)
    desk.send(paths[20], b"")


def test_changes_without_values_tell_their_sizes(desk):
    desk.send("/a", b"four")
    desk.send("/b", b"")
    desk.send("/c", b"gone")
    desk.ask(MessageType.DELETE_PULSE_ID, path="/c")
    desk.now += 5
    request = ChangesRequest("/", 0, 0, None, values=False)
    page = desk.ask(MessageType.CHANGES, changes_request=request).changes
    assert page.columns == (["/a", "/b", "/c"], (1, 2, 4), (5_000,) * 3, (4, 0, TOMBSTONE), None)
    assert (page.more, page.next) == (False, page.revision)


def test_an_answer_that_does_not_fit_a_frame_is_refused():
    desk = Desk(max_size=200)
    for n in range(20):
        desk.send(f"/{n}-some-name")
    with pytest.raises(LimitError, match="frame of"):
        desk.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/")
    # A request without a message id may be as large as a frame; its answer has one.
    path = field(STRING, 1, string("/p"))
    pulse = path + field(STRING, 2, string(bytes(120))) + b"\0"
    desk.handler.answer(
        b"\x08\0\1\0\0\0\4" + field(STRUCT, 2, field(STRUCT, 2, pulse) + b"\0") + b"\0"
    )
    desk.store.put(b"/p", bytes(170))
    with pytest.raises(LimitError, match="frame of"):
        desk.ask(MessageType.GET_PULSE, path="/p")
    desk.store.put(b"/p", bytes(161))
    assert desk.ask(MessageType.GET_PULSE, path="/p").pulse.details == bytes(161)


def test_general_decoding_gives_the_same_answers(desk):
    unknown = field(STRING, 9, string("later"))
    for message in [
        Message(MessageType.SEND_PULSE, 5, pulse=Pulse("/a", b"v")),
        Message(MessageType.GET_PULSE, 5, path="/a"),
        Message(MessageType.GET_PULSE, 5, path=RESERVED_PATH),
    ]:
        payload = encode(message)[4:]
        assert desk.handler.answer(unknown + payload) == desk.handler.answer(payload)
    assert desk.store.index.pulses_received == 2


def test_many_pulses_are_deleted_in_several_turns(desk):
    for n in range(250):
        desk.send(f"/t/{n % 7}/{n}")
    desk.send("/other")
    payload = encode(Message(MessageType.DELETE_PATH, 8, path="/t"))[4:]
    assert desk.handler.answer(payload) is None
    assert desk.store.index.keys == 151
    assert desk.handler.answer(payload) is None
    assert desk.handler.asked[MessageType.DELETE_PATH] == 0
    answer = desk.handler.answer(payload)
    assert decode(answer[4:]) == Message(MessageType.DELETE_PATH_RESPONSE, 8)
    assert desk.handler.asked[MessageType.DELETE_PATH] == 1
    assert [entry.path for entry in desk.store.pulses(b"/")] == [b"/other"]
