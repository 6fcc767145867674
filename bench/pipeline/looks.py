"""How often the pipeline looks, and how exactly its times can be compared."""

from dataclasses import dataclass

#: Seconds by which a time in a table may differ from the truth's: a receipt is dated when the
#: Pacemaker's answer is read, on a machine that has other things to do.
SLACK_SECS = 2.0


@dataclass(frozen=True)
class Looks:
    """How often the pipeline looked, and after which silence it calls a worker late, or dead."""

    trigger_secs: float
    statistics_secs: float
    late_secs: float
    timeout_secs: float
    #: Between two rounds of analyses; 0: there are none.
    analyses_secs: float = 60.0
    #: For how long a silent worker's pulse stays.
    ttl_secs: float = 600.0

    @property
    def two(self):
        return 2 * self.trigger_secs + SLACK_SECS

    @property
    def reading(self):
        """Until a worker's report is in both queries' tables."""
        return self.statistics_secs + self.trigger_secs + self.two
