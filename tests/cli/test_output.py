"""What a command tells while it works."""

import io

import pytest

from stormkeeper.cli.output import Progress, time_left


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_elsewhere_each_text_is_a_line_once():
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.step("packing")
        progress.say("waits for a slot", "3 s")
        progress.say("waits for a slot", "4 s")
        progress.say("runs")
        progress.remark("warning: late")
    assert stream.getvalue() == ("storm: waits for a slot\nstorm: runs\nstorm: warning: late\n")


def test_on_a_terminal_one_line_changes_and_goes():
    stream = Terminal()
    with Progress(stream) as progress:
        progress.step("packing")
        progress.say("waits for a slot", "3 s")
        progress.say("runs")
    lines = stream.getvalue().split("\r\x1b[K")
    assert lines == ["", "packing", "waits for a slot (3 s)", "runs", ""]


def test_a_long_text_stays_in_its_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    Progress(stream).say("x" * 50)
    assert stream.getvalue().removeprefix("\r\x1b[K") == "x" * 18 + "…"


def test_control_characters_of_others_do_nothing():
    stream = io.StringIO()
    Progress(stream).say("an error:\x1b[31m red\nand more")
    assert stream.getvalue() == "storm: an error:\\x1b[31m red\\nand more\n"


@pytest.mark.parametrize(
    ("wait", "passed", "text"), [(30, 7.2, "23 s left"), (30, 31, "31 s"), (0, 2, "2 s")]
)
def test_the_seconds_that_are_left_or_that_have_passed(wait, passed, text):
    assert time_left(wait, passed) == text
