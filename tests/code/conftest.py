"""A clock."""

import pytest


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self):
        self.secs = 0.0

    def __call__(self):
        return self.secs


@pytest.fixture
def clock():
    return Clock()
