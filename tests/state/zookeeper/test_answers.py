"""The answers to many requests, as they come."""

import time

from kazoo import exceptions as kazoo_errors

from stormkeeper.state.zookeeper.answers import Answers
from support.zookeeper_requests import paths, reads


def test_an_answer_counts_once():
    answers = Answers(reads(paths(2)))
    (_, first), (_, second) = answers.requests(0, 10)
    assert not answers.wait(1, time.monotonic())
    first.set("x")
    first.set_exception(kazoo_errors.ConnectionLoss())
    assert answers.wait(1, time.monotonic())
    assert not answers.wait(2, time.monotonic())
    assert answers.failure is None
    lost = kazoo_errors.ConnectionLoss()
    second.set_exception(lost)
    second.set_exception(kazoo_errors.NoNodeError())
    assert answers.all() == ["x", lost]
    assert answers.failure is lost
