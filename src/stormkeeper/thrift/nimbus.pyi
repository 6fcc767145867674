# The classes of nimbus.thrift, with Storm's own field names, and the calls of its service.
# ruff: noqa: A002, N802, N803, N815

from enum import IntEnum
from typing import Protocol

from thriftpy2.thrift import TException, TPayload

from stormkeeper.thrift.idl import Service
from stormkeeper.thrift.records import (
    Assignment,
    Credentials,
    DebugOptions,
    ErrorInfo,
    ExecutorInfo,
    ExecutorStats,
    GlobalStreamId,
    KillOptions,
    LogConfig,
    NimbusSummary,
    ProfileAction,
    ProfileRequest,
    RebalanceOptions,
    TopologyHealth,
    WorkerResources,
)

__all__ = [
    "AccessControl",
    "AccessControlType",
    "AlreadyAliveException",
    "AuthorizationException",
    "BeginDownloadResult",
    "Bolt",
    "BoltAggregateStats",
    "ClusterSummary",
    "CommonAggregateStats",
    "ComponentAggregateStats",
    "ComponentCommon",
    "ComponentObject",
    "ComponentPageInfo",
    "ComponentType",
    "ExecutorAggregateStats",
    "ExecutorSummary",
    "GetInfoOptions",
    "Grouping",
    "IllegalStateException",
    "InvalidTopologyException",
    "JavaObject",
    "JavaObjectArg",
    "KeyAlreadyExistsException",
    "KeyNotFoundException",
    "ListBlobsResult",
    "LocalAssignment",
    "Nimbus",
    "NimbusCalls",
    "NotAliveException",
    "NullStruct",
    "NumErrorsChoice",
    "OwnerResourceSummary",
    "ReadableBlobMeta",
    "SettableBlobMeta",
    "SharedMemory",
    "ShellComponent",
    "SpecificAggregateStats",
    "SpoutAggregateStats",
    "SpoutSpec",
    "StateSpoutSpec",
    "StormTopology",
    "StreamInfo",
    "SubmitOptions",
    "SupervisorAssignments",
    "SupervisorPageInfo",
    "SupervisorSummary",
    "SupervisorWorkerHeartbeat",
    "SupervisorWorkerHeartbeats",
    "TopologyHistoryInfo",
    "TopologyInfo",
    "TopologyInitialStatus",
    "TopologyPageInfo",
    "TopologyStats",
    "TopologySummary",
    "WorkerMetricList",
    "WorkerMetricPoint",
    "WorkerMetrics",
    "WorkerSummary",
]

class JavaObjectArg(TPayload):
    int_arg: int | None
    long_arg: int | None
    string_arg: str | None
    bool_arg: bool | None
    binary_arg: bytes | None
    double_arg: float | None
    def __init__(
        self,
        int_arg: int | None = None,
        long_arg: int | None = None,
        string_arg: str | None = None,
        bool_arg: bool | None = None,
        binary_arg: bytes | None = None,
        double_arg: float | None = None,
    ) -> None: ...

class JavaObject(TPayload):
    full_class_name: str
    args_list: list[JavaObjectArg]
    def __init__(self, full_class_name: str, args_list: list[JavaObjectArg]) -> None: ...

class NullStruct(TPayload):
    def __init__(self) -> None: ...

class Grouping(TPayload):
    fields: list[str] | None
    shuffle: NullStruct | None
    all: NullStruct | None
    none: NullStruct | None
    direct: NullStruct | None
    custom_object: JavaObject | None
    custom_serialized: bytes | None
    local_or_shuffle: NullStruct | None
    def __init__(
        self,
        fields: list[str] | None = None,
        shuffle: NullStruct | None = None,
        all: NullStruct | None = None,
        none: NullStruct | None = None,
        direct: NullStruct | None = None,
        custom_object: JavaObject | None = None,
        custom_serialized: bytes | None = None,
        local_or_shuffle: NullStruct | None = None,
    ) -> None: ...

class StreamInfo(TPayload):
    output_fields: list[str]
    direct: bool
    def __init__(self, output_fields: list[str], direct: bool) -> None: ...

class ShellComponent(TPayload):
    execution_command: str | None
    script: str | None
    def __init__(self, execution_command: str | None = None, script: str | None = None) -> None: ...

class ComponentObject(TPayload):
    serialized_java: bytes | None
    shell: ShellComponent | None
    java_object: JavaObject | None
    def __init__(
        self,
        serialized_java: bytes | None = None,
        shell: ShellComponent | None = None,
        java_object: JavaObject | None = None,
    ) -> None: ...

class ComponentCommon(TPayload):
    inputs: dict[GlobalStreamId, Grouping]
    streams: dict[str, StreamInfo]
    parallelism_hint: int | None
    json_conf: str | None
    def __init__(
        self,
        inputs: dict[GlobalStreamId, Grouping],
        streams: dict[str, StreamInfo],
        parallelism_hint: int | None = None,
        json_conf: str | None = None,
    ) -> None: ...

class SpoutSpec(TPayload):
    spout_object: ComponentObject
    common: ComponentCommon
    def __init__(self, spout_object: ComponentObject, common: ComponentCommon) -> None: ...

class Bolt(TPayload):
    bolt_object: ComponentObject
    common: ComponentCommon
    def __init__(self, bolt_object: ComponentObject, common: ComponentCommon) -> None: ...

class StateSpoutSpec(TPayload):
    state_spout_object: ComponentObject
    common: ComponentCommon
    def __init__(self, state_spout_object: ComponentObject, common: ComponentCommon) -> None: ...

class SharedMemory(TPayload):
    name: str
    on_heap: float | None
    off_heap_worker: float | None
    off_heap_node: float | None
    def __init__(
        self,
        name: str,
        on_heap: float | None = None,
        off_heap_worker: float | None = None,
        off_heap_node: float | None = None,
    ) -> None: ...

class StormTopology(TPayload):
    spouts: dict[str, SpoutSpec]
    bolts: dict[str, Bolt]
    state_spouts: dict[str, StateSpoutSpec]
    worker_hooks: list[bytes] | None
    dependency_jars: list[str] | None
    dependency_artifacts: list[str] | None
    storm_version: str | None
    jdk_version: str | None
    component_to_shared_memory: dict[str, set[str]] | None
    shared_memory: dict[str, SharedMemory] | None
    def __init__(
        self,
        spouts: dict[str, SpoutSpec],
        bolts: dict[str, Bolt],
        state_spouts: dict[str, StateSpoutSpec],
        worker_hooks: list[bytes] | None = None,
        dependency_jars: list[str] | None = None,
        dependency_artifacts: list[str] | None = None,
        storm_version: str | None = None,
        jdk_version: str | None = None,
        component_to_shared_memory: dict[str, set[str]] | None = None,
        shared_memory: dict[str, SharedMemory] | None = None,
    ) -> None: ...

class AlreadyAliveException(TException):
    msg: str
    def __init__(self, msg: str) -> None: ...

class NotAliveException(TException):
    msg: str
    def __init__(self, msg: str) -> None: ...

class AuthorizationException(TException):
    msg: str
    def __init__(self, msg: str) -> None: ...

class InvalidTopologyException(TException):
    msg: str
    def __init__(self, msg: str) -> None: ...

class KeyNotFoundException(TException):
    msg: str
    def __init__(self, msg: str) -> None: ...

class IllegalStateException(TException):
    msg: str
    def __init__(self, msg: str) -> None: ...

class KeyAlreadyExistsException(TException):
    msg: str
    def __init__(self, msg: str) -> None: ...

class TopologySummary(TPayload):
    id: str
    name: str
    num_tasks: int
    num_executors: int
    num_workers: int
    uptime_secs: int
    status: str
    storm_version: str | None
    topology_version: str | None
    sched_status: str | None
    owner: str | None
    replication_count: int | None
    requested_memonheap: float | None
    requested_memoffheap: float | None
    requested_cpu: float | None
    assigned_memonheap: float | None
    assigned_memoffheap: float | None
    assigned_cpu: float | None
    requested_generic_resources: dict[str, float] | None
    assigned_generic_resources: dict[str, float] | None
    health: TopologyHealth | None
    def __init__(
        self,
        id: str,
        name: str,
        num_tasks: int,
        num_executors: int,
        num_workers: int,
        uptime_secs: int,
        status: str,
        storm_version: str | None = None,
        topology_version: str | None = None,
        sched_status: str | None = None,
        owner: str | None = None,
        replication_count: int | None = None,
        requested_memonheap: float | None = None,
        requested_memoffheap: float | None = None,
        requested_cpu: float | None = None,
        assigned_memonheap: float | None = None,
        assigned_memoffheap: float | None = None,
        assigned_cpu: float | None = None,
        requested_generic_resources: dict[str, float] | None = None,
        assigned_generic_resources: dict[str, float] | None = None,
        health: TopologyHealth | None = None,
    ) -> None: ...

class SupervisorSummary(TPayload):
    host: str
    uptime_secs: int
    num_workers: int
    num_used_workers: int
    supervisor_id: str
    version: str | None
    total_resources: dict[str, float] | None
    used_mem: float | None
    used_cpu: float | None
    fragmented_mem: float | None
    fragmented_cpu: float | None
    blacklisted: bool | None
    used_generic_resources: dict[str, float] | None
    refuses: str | None
    java_only: bool | None
    def __init__(
        self,
        host: str,
        uptime_secs: int,
        num_workers: int,
        num_used_workers: int,
        supervisor_id: str,
        version: str | None = None,
        total_resources: dict[str, float] | None = None,
        used_mem: float | None = None,
        used_cpu: float | None = None,
        fragmented_mem: float | None = None,
        fragmented_cpu: float | None = None,
        blacklisted: bool | None = None,
        used_generic_resources: dict[str, float] | None = None,
        refuses: str | None = None,
        java_only: bool | None = None,
    ) -> None: ...

class ClusterSummary(TPayload):
    supervisors: list[SupervisorSummary]
    topologies: list[TopologySummary]
    nimbuses: list[NimbusSummary]
    def __init__(
        self,
        supervisors: list[SupervisorSummary],
        topologies: list[TopologySummary],
        nimbuses: list[NimbusSummary],
    ) -> None: ...

class ExecutorSummary(TPayload):
    executor_info: ExecutorInfo
    component_id: str
    host: str
    port: int
    uptime_secs: int
    stats: ExecutorStats | None
    def __init__(
        self,
        executor_info: ExecutorInfo,
        component_id: str,
        host: str,
        port: int,
        uptime_secs: int,
        stats: ExecutorStats | None = None,
    ) -> None: ...

class TopologyInfo(TPayload):
    id: str
    name: str
    uptime_secs: int
    executors: list[ExecutorSummary]
    status: str
    errors: dict[str, list[ErrorInfo]]
    component_debug: dict[str, DebugOptions] | None
    storm_version: str | None
    sched_status: str | None
    owner: str | None
    replication_count: int | None
    requested_memonheap: float | None
    requested_memoffheap: float | None
    requested_cpu: float | None
    assigned_memonheap: float | None
    assigned_memoffheap: float | None
    assigned_cpu: float | None
    health: TopologyHealth | None
    def __init__(
        self,
        id: str,
        name: str,
        uptime_secs: int,
        executors: list[ExecutorSummary],
        status: str,
        errors: dict[str, list[ErrorInfo]],
        component_debug: dict[str, DebugOptions] | None = None,
        storm_version: str | None = None,
        sched_status: str | None = None,
        owner: str | None = None,
        replication_count: int | None = None,
        requested_memonheap: float | None = None,
        requested_memoffheap: float | None = None,
        requested_cpu: float | None = None,
        assigned_memonheap: float | None = None,
        assigned_memoffheap: float | None = None,
        assigned_cpu: float | None = None,
        health: TopologyHealth | None = None,
    ) -> None: ...

class TopologyHistoryInfo(TPayload):
    topo_ids: list[str] | None
    def __init__(self, topo_ids: list[str] | None = None) -> None: ...

class OwnerResourceSummary(TPayload):
    owner: str
    total_topologies: int | None
    total_executors: int | None
    total_workers: int | None
    memory_usage: float | None
    cpu_usage: float | None
    memory_guarantee: float | None
    cpu_guarantee: float | None
    memory_guarantee_remaining: float | None
    cpu_guarantee_remaining: float | None
    isolated_node_guarantee: int | None
    total_tasks: int | None
    requested_on_heap_memory: float | None
    requested_off_heap_memory: float | None
    requested_total_memory: float | None
    requested_cpu: float | None
    assigned_on_heap_memory: float | None
    assigned_off_heap_memory: float | None
    def __init__(
        self,
        owner: str,
        total_topologies: int | None = None,
        total_executors: int | None = None,
        total_workers: int | None = None,
        memory_usage: float | None = None,
        cpu_usage: float | None = None,
        memory_guarantee: float | None = None,
        cpu_guarantee: float | None = None,
        memory_guarantee_remaining: float | None = None,
        cpu_guarantee_remaining: float | None = None,
        isolated_node_guarantee: int | None = None,
        total_tasks: int | None = None,
        requested_on_heap_memory: float | None = None,
        requested_off_heap_memory: float | None = None,
        requested_total_memory: float | None = None,
        requested_cpu: float | None = None,
        assigned_on_heap_memory: float | None = None,
        assigned_off_heap_memory: float | None = None,
    ) -> None: ...

class NumErrorsChoice(IntEnum):
    ALL = 0
    NONE = 1
    ONE = 2

class GetInfoOptions(TPayload):
    num_err_choice: NumErrorsChoice | None
    def __init__(self, num_err_choice: NumErrorsChoice | None = None) -> None: ...

class ComponentType(IntEnum):
    BOLT = 1
    SPOUT = 2

class CommonAggregateStats(TPayload):
    num_executors: int | None
    num_tasks: int | None
    emitted: int | None
    transferred: int | None
    acked: int | None
    failed: int | None
    resources_map: dict[str, float] | None
    def __init__(
        self,
        num_executors: int | None = None,
        num_tasks: int | None = None,
        emitted: int | None = None,
        transferred: int | None = None,
        acked: int | None = None,
        failed: int | None = None,
        resources_map: dict[str, float] | None = None,
    ) -> None: ...

class SpoutAggregateStats(TPayload):
    complete_latency_ms: float | None
    def __init__(self, complete_latency_ms: float | None = None) -> None: ...

class BoltAggregateStats(TPayload):
    execute_latency_ms: float | None
    process_latency_ms: float | None
    executed: int | None
    capacity: float | None
    def __init__(
        self,
        execute_latency_ms: float | None = None,
        process_latency_ms: float | None = None,
        executed: int | None = None,
        capacity: float | None = None,
    ) -> None: ...

class SpecificAggregateStats(TPayload):
    bolt: BoltAggregateStats | None
    spout: SpoutAggregateStats | None
    def __init__(
        self, bolt: BoltAggregateStats | None = None, spout: SpoutAggregateStats | None = None
    ) -> None: ...

class ComponentAggregateStats(TPayload):
    type: ComponentType | None
    common_stats: CommonAggregateStats | None
    specific_stats: SpecificAggregateStats | None
    last_error: ErrorInfo | None
    def __init__(
        self,
        type: ComponentType | None = None,
        common_stats: CommonAggregateStats | None = None,
        specific_stats: SpecificAggregateStats | None = None,
        last_error: ErrorInfo | None = None,
    ) -> None: ...

class TopologyStats(TPayload):
    window_to_emitted: dict[str, int] | None
    window_to_transferred: dict[str, int] | None
    window_to_complete_latencies_ms: dict[str, float] | None
    window_to_acked: dict[str, int] | None
    window_to_failed: dict[str, int] | None
    def __init__(
        self,
        window_to_emitted: dict[str, int] | None = None,
        window_to_transferred: dict[str, int] | None = None,
        window_to_complete_latencies_ms: dict[str, float] | None = None,
        window_to_acked: dict[str, int] | None = None,
        window_to_failed: dict[str, int] | None = None,
    ) -> None: ...

class WorkerSummary(TPayload):
    supervisor_id: str | None
    host: str | None
    port: int | None
    topology_id: str | None
    topology_name: str | None
    num_executors: int | None
    component_to_num_tasks: dict[str, int] | None
    time_secs: int | None
    uptime_secs: int | None
    requested_memonheap: float | None
    requested_memoffheap: float | None
    requested_cpu: float | None
    assigned_memonheap: float | None
    assigned_memoffheap: float | None
    assigned_cpu: float | None
    owner: str | None
    health: str | None
    def __init__(
        self,
        supervisor_id: str | None = None,
        host: str | None = None,
        port: int | None = None,
        topology_id: str | None = None,
        topology_name: str | None = None,
        num_executors: int | None = None,
        component_to_num_tasks: dict[str, int] | None = None,
        time_secs: int | None = None,
        uptime_secs: int | None = None,
        requested_memonheap: float | None = None,
        requested_memoffheap: float | None = None,
        requested_cpu: float | None = None,
        assigned_memonheap: float | None = None,
        assigned_memoffheap: float | None = None,
        assigned_cpu: float | None = None,
        owner: str | None = None,
        health: str | None = None,
    ) -> None: ...

class SupervisorPageInfo(TPayload):
    supervisor_summaries: list[SupervisorSummary] | None
    worker_summaries: list[WorkerSummary] | None
    def __init__(
        self,
        supervisor_summaries: list[SupervisorSummary] | None = None,
        worker_summaries: list[WorkerSummary] | None = None,
    ) -> None: ...

class TopologyPageInfo(TPayload):
    id: str
    name: str | None
    uptime_secs: int | None
    status: str | None
    num_tasks: int | None
    num_workers: int | None
    num_executors: int | None
    topology_conf: str | None
    id_to_spout_agg_stats: dict[str, ComponentAggregateStats] | None
    id_to_bolt_agg_stats: dict[str, ComponentAggregateStats] | None
    sched_status: str | None
    topology_stats: TopologyStats | None
    owner: str | None
    debug_options: DebugOptions | None
    replication_count: int | None
    workers: list[WorkerSummary] | None
    storm_version: str | None
    topology_version: str | None
    requested_memonheap: float | None
    requested_memoffheap: float | None
    requested_cpu: float | None
    assigned_memonheap: float | None
    assigned_memoffheap: float | None
    assigned_cpu: float | None
    requested_regular_on_heap_memory: float | None
    requested_shared_on_heap_memory: float | None
    requested_regular_off_heap_memory: float | None
    requested_shared_off_heap_memory: float | None
    assigned_regular_on_heap_memory: float | None
    assigned_shared_on_heap_memory: float | None
    assigned_regular_off_heap_memory: float | None
    assigned_shared_off_heap_memory: float | None
    requested_generic_resources: dict[str, float] | None
    assigned_generic_resources: dict[str, float] | None
    health: TopologyHealth | None
    def __init__(
        self,
        id: str,
        name: str | None = None,
        uptime_secs: int | None = None,
        status: str | None = None,
        num_tasks: int | None = None,
        num_workers: int | None = None,
        num_executors: int | None = None,
        topology_conf: str | None = None,
        id_to_spout_agg_stats: dict[str, ComponentAggregateStats] | None = None,
        id_to_bolt_agg_stats: dict[str, ComponentAggregateStats] | None = None,
        sched_status: str | None = None,
        topology_stats: TopologyStats | None = None,
        owner: str | None = None,
        debug_options: DebugOptions | None = None,
        replication_count: int | None = None,
        workers: list[WorkerSummary] | None = None,
        storm_version: str | None = None,
        topology_version: str | None = None,
        requested_memonheap: float | None = None,
        requested_memoffheap: float | None = None,
        requested_cpu: float | None = None,
        assigned_memonheap: float | None = None,
        assigned_memoffheap: float | None = None,
        assigned_cpu: float | None = None,
        requested_regular_on_heap_memory: float | None = None,
        requested_shared_on_heap_memory: float | None = None,
        requested_regular_off_heap_memory: float | None = None,
        requested_shared_off_heap_memory: float | None = None,
        assigned_regular_on_heap_memory: float | None = None,
        assigned_shared_on_heap_memory: float | None = None,
        assigned_regular_off_heap_memory: float | None = None,
        assigned_shared_off_heap_memory: float | None = None,
        requested_generic_resources: dict[str, float] | None = None,
        assigned_generic_resources: dict[str, float] | None = None,
        health: TopologyHealth | None = None,
    ) -> None: ...

class ExecutorAggregateStats(TPayload):
    exec_summary: ExecutorSummary | None
    stats: ComponentAggregateStats | None
    def __init__(
        self,
        exec_summary: ExecutorSummary | None = None,
        stats: ComponentAggregateStats | None = None,
    ) -> None: ...

class ComponentPageInfo(TPayload):
    component_id: str
    component_type: ComponentType
    topology_id: str | None
    topology_name: str | None
    num_executors: int | None
    num_tasks: int | None
    window_to_stats: dict[str, ComponentAggregateStats] | None
    gsid_to_input_stats: dict[GlobalStreamId, ComponentAggregateStats] | None
    sid_to_output_stats: dict[str, ComponentAggregateStats] | None
    exec_stats: list[ExecutorAggregateStats] | None
    errors: list[ErrorInfo] | None
    eventlog_host: str | None
    eventlog_port: int | None
    debug_options: DebugOptions | None
    topology_status: str | None
    resources_map: dict[str, float] | None
    def __init__(
        self,
        component_id: str,
        component_type: ComponentType,
        topology_id: str | None = None,
        topology_name: str | None = None,
        num_executors: int | None = None,
        num_tasks: int | None = None,
        window_to_stats: dict[str, ComponentAggregateStats] | None = None,
        gsid_to_input_stats: dict[GlobalStreamId, ComponentAggregateStats] | None = None,
        sid_to_output_stats: dict[str, ComponentAggregateStats] | None = None,
        exec_stats: list[ExecutorAggregateStats] | None = None,
        errors: list[ErrorInfo] | None = None,
        eventlog_host: str | None = None,
        eventlog_port: int | None = None,
        debug_options: DebugOptions | None = None,
        topology_status: str | None = None,
        resources_map: dict[str, float] | None = None,
    ) -> None: ...

class TopologyInitialStatus(IntEnum):
    ACTIVE = 1
    INACTIVE = 2

class SubmitOptions(TPayload):
    initial_status: TopologyInitialStatus
    creds: Credentials | None
    def __init__(
        self, initial_status: TopologyInitialStatus, creds: Credentials | None = None
    ) -> None: ...

class AccessControlType(IntEnum):
    OTHER = 1
    USER = 2

class AccessControl(TPayload):
    type: AccessControlType
    name: str | None
    access: int
    def __init__(self, type: AccessControlType, name: str | None, access: int) -> None: ...

class SettableBlobMeta(TPayload):
    acl: list[AccessControl]
    replication_factor: int | None
    def __init__(self, acl: list[AccessControl], replication_factor: int | None = None) -> None: ...

class ReadableBlobMeta(TPayload):
    settable: SettableBlobMeta
    version: int
    def __init__(self, settable: SettableBlobMeta, version: int) -> None: ...

class ListBlobsResult(TPayload):
    keys: list[str]
    session: str
    def __init__(self, keys: list[str], session: str) -> None: ...

class BeginDownloadResult(TPayload):
    version: int
    session: str
    data_size: int | None
    offset: int | None
    def __init__(
        self,
        version: int,
        session: str,
        data_size: int | None = None,
        offset: int | None = None,
    ) -> None: ...

class LocalAssignment(TPayload):
    topology_id: str
    executors: list[ExecutorInfo]
    resources: WorkerResources | None
    total_node_shared: float | None
    owner: str | None
    def __init__(
        self,
        topology_id: str,
        executors: list[ExecutorInfo],
        resources: WorkerResources | None = None,
        total_node_shared: float | None = None,
        owner: str | None = None,
    ) -> None: ...

class SupervisorAssignments(TPayload):
    storm_assignment: dict[str, Assignment] | None
    def __init__(self, storm_assignment: dict[str, Assignment] | None = None) -> None: ...

class SupervisorWorkerHeartbeat(TPayload):
    storm_id: str
    executors: list[ExecutorInfo]
    time_secs: int
    def __init__(self, storm_id: str, executors: list[ExecutorInfo], time_secs: int) -> None: ...

class SupervisorWorkerHeartbeats(TPayload):
    supervisor_id: str
    worker_heartbeats: list[SupervisorWorkerHeartbeat]
    def __init__(
        self, supervisor_id: str, worker_heartbeats: list[SupervisorWorkerHeartbeat]
    ) -> None: ...

class WorkerMetricPoint(TPayload):
    metricName: str
    timestamp: int
    metricValue: float
    componentId: str
    executorId: str
    streamId: str
    def __init__(
        self,
        metricName: str,
        timestamp: int,
        metricValue: float,
        componentId: str,
        executorId: str,
        streamId: str,
    ) -> None: ...

class WorkerMetricList(TPayload):
    metrics: list[WorkerMetricPoint] | None
    def __init__(self, metrics: list[WorkerMetricPoint] | None = None) -> None: ...

class WorkerMetrics(TPayload):
    topologyId: str
    port: int
    hostname: str
    metricList: WorkerMetricList
    def __init__(
        self, topologyId: str, port: int, hostname: str, metricList: WorkerMetricList
    ) -> None: ...

Nimbus: Service

class NimbusCalls(Protocol):
    def submitTopology(
        self, name: str, uploadedJarLocation: str | None, jsonConf: str, topology: StormTopology, /
    ) -> None: ...
    def submitTopologyWithOpts(
        self,
        name: str,
        uploadedJarLocation: str | None,
        jsonConf: str,
        topology: StormTopology,
        options: SubmitOptions,
        /,
    ) -> None: ...
    def killTopology(self, name: str, /) -> None: ...
    def killTopologyWithOpts(self, name: str, options: KillOptions, /) -> None: ...
    def activate(self, name: str, /) -> None: ...
    def deactivate(self, name: str, /) -> None: ...
    def rebalance(self, name: str, options: RebalanceOptions, /) -> None: ...
    def setLogConfig(self, name: str, config: LogConfig, /) -> None: ...
    def getLogConfig(self, name: str, /) -> LogConfig: ...
    def debug(
        self, name: str, component: str | None, enable: bool, samplingPercentage: float, /
    ) -> None: ...
    def setWorkerProfiler(self, id: str, profileRequest: ProfileRequest, /) -> None: ...
    def getComponentPendingProfileActions(
        self, id: str, component_id: str, action: ProfileAction, /
    ) -> list[ProfileRequest]: ...
    def uploadNewCredentials(self, name: str, creds: Credentials, /) -> None: ...
    def beginCreateBlob(self, key: str, meta: SettableBlobMeta, /) -> str: ...
    def beginUpdateBlob(self, key: str, /) -> str: ...
    def uploadBlobChunk(self, session: str, chunk: bytes, /) -> None: ...
    def finishBlobUpload(self, session: str, /) -> None: ...
    def cancelBlobUpload(self, session: str, /) -> None: ...
    def getBlobMeta(self, key: str, /) -> ReadableBlobMeta: ...
    def setBlobMeta(self, key: str, meta: SettableBlobMeta, /) -> None: ...
    def beginBlobDownload(self, key: str, offset: int | None = None, /) -> BeginDownloadResult: ...
    def downloadBlobChunk(self, session: str, /) -> bytes: ...
    def deleteBlob(self, key: str, /) -> None: ...
    def listBlobs(self, session: str | None, /) -> ListBlobsResult: ...
    def getBlobReplication(self, key: str, /) -> int: ...
    def updateBlobReplication(self, key: str, replication: int, /) -> int: ...
    def createStateInZookeeper(self, key: str, /) -> None: ...
    def beginFileUpload(self) -> str: ...
    def uploadChunk(self, location: str, chunk: bytes, /) -> None: ...
    def finishFileUpload(self, location: str, /) -> None: ...
    def downloadChunk(self, id: str, /) -> bytes: ...
    def getNimbusConf(self) -> str: ...
    def getClusterInfo(self) -> ClusterSummary: ...
    def getTopologySummaries(self) -> list[TopologySummary]: ...
    def getTopologySummaryByName(self, name: str, /) -> TopologySummary: ...
    def getTopologySummary(self, id: str, /) -> TopologySummary: ...
    def getLeader(self) -> NimbusSummary: ...
    def isTopologyNameAllowed(self, name: str, /) -> bool: ...
    def getTopologyInfoByName(self, name: str, /) -> TopologyInfo: ...
    def getTopologyInfo(self, id: str, /) -> TopologyInfo: ...
    def getTopologyInfoByNameWithOpts(
        self, name: str, options: GetInfoOptions, /
    ) -> TopologyInfo: ...
    def getTopologyInfoWithOpts(self, id: str, options: GetInfoOptions, /) -> TopologyInfo: ...
    def getTopologyPageInfo(
        self, id: str, window: str | None, is_include_sys: bool, /
    ) -> TopologyPageInfo: ...
    def getSupervisorPageInfo(
        self, id: str | None, host: str | None, is_include_sys: bool, /
    ) -> SupervisorPageInfo: ...
    def getComponentPageInfo(
        self, topology_id: str, component_id: str, window: str | None, is_include_sys: bool, /
    ) -> ComponentPageInfo: ...
    def getTopologyConf(self, id: str, /) -> str: ...
    def getTopology(self, id: str, /) -> StormTopology: ...
    def getUserTopology(self, id: str, /) -> StormTopology: ...
    def getTopologyHistory(self, user: str | None, /) -> TopologyHistoryInfo: ...
    def getOwnerResourceSummaries(self, owner: str | None, /) -> list[OwnerResourceSummary]: ...
    def getSupervisorAssignments(self, node: str, /) -> SupervisorAssignments: ...
    def sendSupervisorWorkerHeartbeats(self, heartbeats: SupervisorWorkerHeartbeats, /) -> None: ...
    def sendSupervisorWorkerHeartbeat(self, heatbeat: SupervisorWorkerHeartbeat, /) -> None: ...
    def processWorkerMetrics(self, metrics: WorkerMetrics, /) -> None: ...
    def isRemoteBlobExists(self, blobKey: str, /) -> bool: ...
