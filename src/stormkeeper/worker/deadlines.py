"""How long each step of a worker's stop may take, in seconds.

Each is counted from the beginning of the stop. Time that a step does not need goes to those after
it. Whoever started the worker waits little longer than the last one.
"""

from typing import Final

#: The batches that run when the worker is asked to stop.
STOP_SECS: Final = 15.0

#: What Spark tells of the last batches.
DRAIN_SECS: Final = 18.0

#: The script, which goes on once its queries have been stopped.
SCRIPT_SECS: Final = 21.0

#: The last heartbeat.
LAST_BEAT_SECS: Final = 24.0

#: The JVM.
END_SECS: Final = 27.0

# And for how long each may take at most, however much of that is left.

#: A script after its queries.
AFTER_SECS: Final = 6.0

#: A heartbeat.
BEAT_SECS: Final = 4.0

#: The JVM.
JVM_SECS: Final = 12.0

# What is no part of a stop.

#: The batches that run when a topology is deactivated: there is no hurry.
PAUSE_SECS: Final = 600.0

#: What is to be reported to the cluster's state when the worker ends by itself.
REPORT_SECS: Final = 5.0

#: The first read of the topology's status.
STATUS_SECS: Final = 15.0

#: The end of the session with the cluster's state.
CLOSE_SECS: Final = 1.0
