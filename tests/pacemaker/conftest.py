from support.pacemaker import pacemaker, start_pacemaker

__all__ = ["pacemaker", "start_pacemaker"]
