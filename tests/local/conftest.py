from support.pacemaker import start_pacemaker

__all__ = ["start_pacemaker"]
