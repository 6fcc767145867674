"""What every room's tests may use: ``tests/support`` as ``support``, and servers they all share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from support.kerberos import kerberos_realm
from support.zookeeper import zookeeper_root, zookeeper_server, zookeeper_settings

__all__ = ["kerberos_realm", "zookeeper_root", "zookeeper_server", "zookeeper_settings"]
