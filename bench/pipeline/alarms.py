"""Compares the pipeline's alerts with the troubles that a simulation planted.

Only two rules can find anything within minutes: the others need a past of hours, or ten minutes of
uneven work. Whatever is found must be true in any case.
"""

from pipeline.looks import SLACK_SECS

#: Restarts of a flapping worker in a simulation.
_FLAPS = 6


def compare(truth, alerts, verdict, looks):
    """Judge `alerts` and `alert_history`.

    Parameters
    ----------
    truth
        A `truth.Truth`.
    alerts
        The `Tables` of alerts; None if no round of analyses was published.
    verdict
        An `agreement.Verdict` to add to.
    looks
        A `looks.Looks`.
    """
    found = _found(alerts) if alerts is not None else []
    for one in found:
        if one["since"].timestamp() < truth.ended_at:
            is_true = any(_is_about(one, trouble) for trouble in truth.troubles)
            verdict.hold("an alert is false", is_true, one["rule"], one["subject"], one["evidence"])
    verdict.tried["an alert is false"] += 0
    for trouble in truth.troubles:
        if _may_be_seen(truth, trouble, looks):
            is_found = any(_is_about(one, trouble) for one in found)
            verdict.hold("a trouble raised no alert", is_found, trouble)


def _found(alerts):
    """Return each alert once, be it over or not."""
    names = ["id", "rule", "subject", "storm_id", "node", "evidence", "since"]
    rows = [
        row
        for table in ("alerts", "alert_history")
        for row in alerts.arrow(table, columns=names).to_pylist()
    ]
    return [*{(row["id"], row["since"]): row for row in rows}.values()]


#: What each rule finds, and what it is then about.
_SUBJECTS = {
    "node_late": {"node_late": ("node",)},
    "flapping": {"worker_flapping": ("storm_id", "node"), "node_late": ("node",)},
    "skew": {"executor_skewed": ("storm_id",)},
    "saturation": {"bolt_saturating": ("storm_id",)},
    "throughput": {"throughput_dropped": ("storm_id",), "topology_killed": ("storm_id",)},
    "growth": {"heartbeats_growing": ("storm_id",)},
}


def _is_about(alert, trouble):
    about = _SUBJECTS.get(alert["rule"], {}).get(trouble["kind"])
    return about is not None and all(alert[name] == trouble[name] for name in about)


def _may_be_seen(truth, trouble, looks):
    """Whether a trouble lasts, and the simulation after it, so that a round must find it."""
    if trouble["until"] is None or truth.ended_at < trouble["since"] + looks.analyses_secs:
        return False
    secs = min(trouble["until"], truth.ended_at) - trouble["since"]
    if trouble["kind"] == "node_late":
        return secs > looks.late_secs + looks.analyses_secs + looks.two
    if trouble["kind"] == "worker_flapping":
        # Each life is read, and the end of the last one is in a round.
        life = secs / _FLAPS * 2 / 3
        is_read = life > looks.statistics_secs + looks.trigger_secs + SLACK_SECS
        rest = truth.ended_at - trouble["until"]
        return is_read and rest > looks.reading + looks.analyses_secs
    return False
