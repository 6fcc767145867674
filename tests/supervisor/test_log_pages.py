"""The pages with workers' logs, as an HTTP client gets them."""

import http.client
import json
import os
import threading
from contextlib import closing
from urllib.parse import quote

import pytest

from stormkeeper.supervisor.http_pages import MOST_BYTES, USUAL_BYTES
from support.logs import serving
from support.waiting import DEADLINE_SECS

ID = "wörter & co-1-1700000000"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / ID / "6700" / "worker.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one\ntwo\n")
    return path


@pytest.fixture
def ask(tmp_path):
    """Start the pages; return what asks for one."""
    with serving(tmp_path) as port:
        yield lambda path: asked(port, path)


def asked(port, path):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECS)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read(), answer.headers


def link(storm_id=ID, port=6700, name="worker.log"):
    """Return a link as Storm's pages have it."""
    return f"/api/v1/log?file={quote(storm_id)}%2F{port}%2F{name}"


@pytest.mark.usefixtures("log")
def test_the_link_of_storms_pages(ask):
    status, body, headers = ask(link())
    assert (status, body) == (200, b"one\ntwo\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert (headers["Log-Start"], headers["Log-Size"]) == ("0", "8")


def test_the_end_of_a_long_log_or_the_part_that_is_asked_for(ask, log):
    log.write_bytes(b"x" * 300_000 + b"end\n")
    status, body, headers = ask(link())
    assert (status, len(body), body[-4:]) == (200, USUAL_BYTES, b"end\n")
    assert headers["Log-Start"] == str(300_004 - USUAL_BYTES)
    assert ask(f"{link()}&start=299999&length=3")[1] == b"xen"
    assert len(ask(f"{link()}&start=0&length=999999")[1]) == MOST_BYTES
    assert ask(f"{link()}&start=300004")[:2] == (200, b"")
    assert ask(f"{link()}&start=300005")[:2] == (
        416,
        b"Requested Range Not Satisfiable: the file has 300004 bytes\n",
    )


def test_a_file_that_has_become_another_is_refused(ask, log):
    identity = ask(link())[2]["Log-Identity"]
    assert ask(f"{link()}&identity={identity}")[0] == 200
    log.rename(log.with_name("worker.log.1"))
    log.write_bytes(b"new\n")
    assert ask(f"{link()}&identity={identity}")[0] == 409
    assert ask(f"{link(name='worker.log.1')}&identity={identity}")[1] == b"one\ntwo\n"


def test_the_list_of_files(ask, log):
    log.with_name("worker.log.1").write_bytes(b"zero\n")
    os.utime(log.with_name("worker.log.1"), (7, 7))
    path = f"/api/v1/listLogs?topoId={quote(ID)}"
    status, body, headers = ask(path)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == [f"{ID}/6700/worker.log", f"{ID}/6700/worker.log.1"]
    assert json.loads(ask(f"{path}&port=6701")[1]) == []
    old, new = json.loads(ask(f"{path}&port=6700&details=yes")[1])
    assert (old["file"], old["size"], old["modified"]) == (f"{ID}/6700/worker.log.1", 5, 7)
    assert (new["port"], new["size"]) == (6700, 8)
    assert json.loads(ask("/api/v1/listLogs?topoId=nobody")[1]) == []


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/v1/log", 400, b"say which: file=ID/PORT/worker.log"),
        ("/api/v1/log?file=", 404, b"no log has that name"),
        ("/api/v1/log?file=..%2F..%2Fetc%2Fpasswd", 404, b"no log has that name"),
        ("/api/v1/log?file=%2E%2E%2F6700%2Fworker.log", 404, b"no log has that name"),
        (link(storm_id="nobody"), 404, b"there is no such log on this machine"),
        (link(storm_id="a" * 300), 404, b"there is no such log on this machine"),
        (link(port=6701), 404, b"there is no such log on this machine"),
        (f"{link()}&start=-1", 400, b"start is '-1': give a number"),
        (f"{link()}&length=1e3", 400, b"length is '1e3': give a number"),
        (f"{link()}&start={'9' * 30}", 400, b"give a number"),
        (f"{link()}{'&a=1' * 30}", 400, b"more than 20 parameters"),
        ("/api/v1/listLogs", 400, b"say whose: topoId=ID"),
        ("/api/v1/listLogs?topoId=a&port=x", 400, b"port is 'x': give a number"),
    ],
)
@pytest.mark.usefixtures("log")
def test_what_cannot_be_answered_is_said(ask, path, status, said):
    answer = ask(path)
    assert answer[0] == status
    assert said in answer[1]


@pytest.mark.usefixtures("log")
def test_a_log_that_may_not_be_read_is_no_missing_one(ask, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("stormkeeper.supervisor.http_pages.os.pread", refuse)
    assert ask(link())[:2] == (
        500,
        b"Internal Server Error: this supervisor cannot read it: Permission denied\n",
    )


def test_several_readers_get_the_same_while_the_log_grows(ask, log):
    lines = [b"line %d\n" % number for number in range(200)]
    read = {}

    def follow(reader):
        got = b""
        while len(got) < len(b"".join(lines)):
            got += ask(f"{link()}&start={len(got)}")[1]
        read[reader] = got

    log.write_bytes(b"")
    readers = [threading.Thread(target=follow, args=(reader,)) for reader in range(6)]
    for reader in readers:
        reader.start()
    with log.open("ab", buffering=0) as file:
        for line in lines:
            file.write(line)
    for reader in readers:
        reader.join(DEADLINE_SECS)
    assert read == dict.fromkeys(range(6), b"".join(lines))
