"""Log levels, as Storm's Nimbus changes them."""

import pytest

from stormkeeper.errors import CallRefusedError
from stormkeeper.nimbus.service.lifecycle_calls import log_levels
from stormkeeper.thrift.records import LogConfig, LogLevel, LogLevelAction

NOW = 1_700_000_000.25


def update(level, secs=None):
    return LogLevel(LogLevelAction.UPDATE, level, secs)


def test_a_level_is_updated_and_ends_when_its_time_is_over():
    asked = LogConfig({"ROOT": update("DEBUG", 30), "a.b": update("WARN"), "c": update("INFO", 0)})
    levels = log_levels(None, asked, now=NOW).named_logger_level
    assert levels["ROOT"].reset_log_level_timeout_epoch == 1_700_000_030_250
    assert levels["a.b"].reset_log_level_timeout_epoch is None
    assert levels["c"].reset_log_level_timeout_epoch is None
    assert levels["a.b"].target_log_level == "WARN"
    assert asked.named_logger_level["ROOT"].reset_log_level_timeout_epoch is None


def test_what_is_not_asked_for_stays_and_is_said_to_be_unchanged():
    before = LogConfig({"ROOT": update("DEBUG", 30), "a": update("WARN")})
    asked = LogConfig(
        {
            "ROOT": LogLevel(LogLevelAction.REMOVE),
            "never": LogLevel(LogLevelAction.REMOVE),
            "b": LogLevel(LogLevelAction.UNCHANGED, "INFO"),
        }
    )
    levels = log_levels(before, asked, now=NOW).named_logger_level
    assert levels == {"a": LogLevel(LogLevelAction.UNCHANGED, "WARN")}
    assert before.named_logger_level["a"].action == LogLevelAction.UPDATE
    assert log_levels(LogConfig(), LogConfig(), now=NOW) == LogConfig({})


def test_a_logger_has_a_name():
    with pytest.raises(CallRefusedError, match="Use ROOT for the root logger"):
        log_levels(None, LogConfig({"": update("INFO")}), now=NOW)
