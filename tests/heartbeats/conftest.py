from support.pacemaker import pacemaker, start_pacemaker  # noqa: F401
