import pytest

from stormkeeper.topology.schedule_status import ScheduleKind, schedule_kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Fully Scheduled", ScheduleKind.FULL),
        ("Running with fewer slots than requested (1/2)", ScheduleKind.FEWER_SLOTS),
        ("Fully Scheduled; stuck: no batch has ended for 20 min", ScheduleKind.FULL),
        ("Not enough slots: 1 slot is missing, and none is free", ScheduleKind.LACKS_SLOTS),
        ("Waits for the machine a: its checkpoint is there and is not shared", None),
        ("", None),
        (None, None),
    ],
)
def test_text_has_the_kind_of_its_beginning(text, kind):
    assert schedule_kind(text) is kind
