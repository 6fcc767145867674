"""The table of all methods of Nimbus's service, and the group of calls that serves each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stormkeeper.nimbus.service.blob_calls import BlobCalls
from stormkeeper.nimbus.service.context import ServiceContext
from stormkeeper.nimbus.service.lifecycle_calls import LifecycleCalls
from stormkeeper.nimbus.service.status_calls import StatusCalls
from stormkeeper.nimbus.service.submission_calls import SubmissionCalls

if TYPE_CHECKING:
    from stormkeeper.thrift.nimbus import NimbusCalls


class Handler:
    """Nimbus's service, safe for many threads."""

    def __init__(self, context: ServiceContext) -> None:  # noqa: PLR0915 - a table
        submission = SubmissionCalls(context)
        self.isTopologyNameAllowed = submission.isTopologyNameAllowed
        self.beginFileUpload = submission.beginFileUpload
        self.uploadChunk = submission.uploadChunk
        self.finishFileUpload = submission.finishFileUpload
        self.submitTopology = submission.submitTopology
        self.submitTopologyWithOpts = submission.submitTopologyWithOpts

        lifecycle = LifecycleCalls(context)
        self.killTopology = lifecycle.killTopology
        self.killTopologyWithOpts = lifecycle.killTopologyWithOpts
        self.activate = lifecycle.activate
        self.deactivate = lifecycle.deactivate
        self.rebalance = lifecycle.rebalance
        self.uploadNewCredentials = lifecycle.uploadNewCredentials
        self.setLogConfig = lifecycle.setLogConfig
        self.getLogConfig = lifecycle.getLogConfig
        self.debug = lifecycle.debug
        self.setWorkerProfiler = lifecycle.setWorkerProfiler
        self.getComponentPendingProfileActions = lifecycle.getComponentPendingProfileActions

        status = StatusCalls(context)
        self.count_health = status.count_health
        self.getLeader = status.getLeader
        self.getClusterInfo = status.getClusterInfo
        self.getNimbusConf = status.getNimbusConf
        self.getTopologySummaries = status.getTopologySummaries
        self.getTopologySummaryByName = status.getTopologySummaryByName
        self.getTopologySummary = status.getTopologySummary
        self.getOwnerResourceSummaries = status.getOwnerResourceSummaries
        self.getTopologyHistory = status.getTopologyHistory
        self.getSupervisorPageInfo = status.getSupervisorPageInfo
        self.getTopologyInfo = status.getTopologyInfo
        self.getTopologyInfoByName = status.getTopologyInfoByName
        self.getTopologyInfoWithOpts = status.getTopologyInfoWithOpts
        self.getTopologyInfoByNameWithOpts = status.getTopologyInfoByNameWithOpts
        self.getTopologyPageInfo = status.getTopologyPageInfo
        self.getComponentPageInfo = status.getComponentPageInfo
        self.getTopologyConf = status.getTopologyConf
        self.getTopology = status.getTopology
        self.getUserTopology = status.getUserTopology
        self.getSupervisorAssignments = status.getSupervisorAssignments
        self.sendSupervisorWorkerHeartbeats = status.sendSupervisorWorkerHeartbeats
        self.sendSupervisorWorkerHeartbeat = status.sendSupervisorWorkerHeartbeat
        self.processWorkerMetrics = status.processWorkerMetrics

        blobs = BlobCalls(context)
        self.beginCreateBlob = blobs.beginCreateBlob
        self.beginUpdateBlob = blobs.beginUpdateBlob
        self.uploadBlobChunk = blobs.uploadBlobChunk
        self.finishBlobUpload = blobs.finishBlobUpload
        self.cancelBlobUpload = blobs.cancelBlobUpload
        self.getBlobMeta = blobs.getBlobMeta
        self.setBlobMeta = blobs.setBlobMeta
        self.beginBlobDownload = blobs.beginBlobDownload
        self.downloadBlobChunk = blobs.downloadBlobChunk
        self.downloadChunk = blobs.downloadChunk
        self.deleteBlob = blobs.deleteBlob
        self.listBlobs = blobs.listBlobs
        self.getBlobReplication = blobs.getBlobReplication
        self.updateBlobReplication = blobs.updateBlobReplication
        self.createStateInZookeeper = blobs.createStateInZookeeper
        self.isRemoteBlobExists = blobs.isRemoteBlobExists


if TYPE_CHECKING:

    def _is_complete(context: ServiceContext) -> NimbusCalls:
        return Handler(context)
