"""All methods of the service, as `stormkeeper.rpc.serving.Server` wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stormkeeper.nimbus.service.blobs import Blobs
from stormkeeper.nimbus.service.clusters import Clusters
from stormkeeper.nimbus.service.living import Living
from stormkeeper.nimbus.service.reports import Reports
from stormkeeper.nimbus.service.settings import Settings
from stormkeeper.nimbus.service.submitting import Submitting
from stormkeeper.nimbus.service.topologies import Topologies

if TYPE_CHECKING:
    from stormkeeper.nimbus.service.given import Given
    from stormkeeper.thrift.nimbus import NimbusCalls


class Handler(Submitting, Living, Clusters, Topologies, Settings, Blobs, Reports):
    """Nimbus's service; safe for many threads. See `stormkeeper.nimbus.service.given`."""


if TYPE_CHECKING:

    def _is_complete(given: Given) -> NimbusCalls:
        return Handler(given)
