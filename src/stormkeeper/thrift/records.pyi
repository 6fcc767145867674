# The classes of storm.thrift, with Storm's own field names.
# ruff: noqa: N803, N815

from enum import IntEnum

from thriftpy2.thrift import TPayload

__all__ = [
    "Assignment",
    "BoltStats",
    "Checkpoints",
    "ClusterWorkerHeartbeat",
    "CrashSeries",
    "Credentials",
    "DebugOptions",
    "ErrorInfo",
    "ExecutorInfo",
    "ExecutorSpecificStats",
    "ExecutorStats",
    "GlobalStreamId",
    "KillOptions",
    "LaunchClaim",
    "LogConfig",
    "LogLevel",
    "LogLevelAction",
    "NimbusSummary",
    "NodeInfo",
    "PrivateWorkerKey",
    "ProfileAction",
    "ProfileRequest",
    "QueryActivity",
    "RebalanceOptions",
    "SlotReport",
    "SpoutStats",
    "StormBase",
    "SupervisorInfo",
    "TaskHeartbeat",
    "TaskInfo",
    "TopologyActionOptions",
    "TopologyHealth",
    "TopologyStatus",
    "WorkerActivity",
    "WorkerLaunch",
    "WorkerResources",
]

class ExecutorInfo(TPayload):
    task_start: int
    task_end: int
    def __init__(self, task_start: int, task_end: int) -> None: ...

class GlobalStreamId(TPayload):
    componentId: str
    streamId: str
    def __init__(self, componentId: str, streamId: str) -> None: ...

class BoltStats(TPayload):
    acked: dict[str, dict[GlobalStreamId, int]]
    failed: dict[str, dict[GlobalStreamId, int]]
    process_ms_avg: dict[str, dict[GlobalStreamId, float]]
    executed: dict[str, dict[GlobalStreamId, int]]
    execute_ms_avg: dict[str, dict[GlobalStreamId, float]]
    def __init__(
        self,
        acked: dict[str, dict[GlobalStreamId, int]],
        failed: dict[str, dict[GlobalStreamId, int]],
        process_ms_avg: dict[str, dict[GlobalStreamId, float]],
        executed: dict[str, dict[GlobalStreamId, int]],
        execute_ms_avg: dict[str, dict[GlobalStreamId, float]],
    ) -> None: ...

class SpoutStats(TPayload):
    acked: dict[str, dict[str, int]]
    failed: dict[str, dict[str, int]]
    complete_ms_avg: dict[str, dict[str, float]]
    def __init__(
        self,
        acked: dict[str, dict[str, int]],
        failed: dict[str, dict[str, int]],
        complete_ms_avg: dict[str, dict[str, float]],
    ) -> None: ...

class ExecutorSpecificStats(TPayload):
    bolt: BoltStats | None
    spout: SpoutStats | None
    def __init__(self, bolt: BoltStats | None = None, spout: SpoutStats | None = None) -> None: ...

class ExecutorStats(TPayload):
    emitted: dict[str, dict[str, int]]
    transferred: dict[str, dict[str, int]]
    specific: ExecutorSpecificStats
    rate: float
    component: str | None
    partial_batches: dict[str, int] | None
    def __init__(
        self,
        emitted: dict[str, dict[str, int]],
        transferred: dict[str, dict[str, int]],
        specific: ExecutorSpecificStats,
        rate: float,
        component: str | None = None,
        partial_batches: dict[str, int] | None = None,
    ) -> None: ...

class QueryActivity(TPayload):
    query: str
    last_batch: int | None
    since_last_ms: int | None
    running_batch: int | None
    running_ms: int | None
    def __init__(
        self,
        query: str,
        last_batch: int | None = None,
        since_last_ms: int | None = None,
        running_batch: int | None = None,
        running_ms: int | None = None,
    ) -> None: ...

class ClusterWorkerHeartbeat(TPayload):
    storm_id: str
    executor_stats: dict[ExecutorInfo, ExecutorStats]
    time_secs: int
    uptime_secs: int
    completed: bool | None
    inactive: bool | None
    queries: list[QueryActivity] | None
    jvm_silent_ms: int | None
    waiting: str | None
    def __init__(
        self,
        storm_id: str,
        executor_stats: dict[ExecutorInfo, ExecutorStats],
        time_secs: int,
        uptime_secs: int,
        completed: bool | None = None,
        inactive: bool | None = None,
        queries: list[QueryActivity] | None = None,
        jvm_silent_ms: int | None = None,
        waiting: str | None = None,
    ) -> None: ...

class WorkerActivity(TPayload):
    uptime_secs: int
    completed: bool | None
    inactive: bool | None
    queries: list[QueryActivity] | None
    jvm_silent_ms: int | None
    waiting: str | None
    def __init__(
        self,
        uptime_secs: int,
        completed: bool | None = None,
        inactive: bool | None = None,
        queries: list[QueryActivity] | None = None,
        jvm_silent_ms: int | None = None,
        waiting: str | None = None,
    ) -> None: ...

class NodeInfo(TPayload):
    node: str
    port: set[int]
    def __init__(self, node: str, port: set[int]) -> None: ...

class WorkerResources(TPayload):
    mem_on_heap: float | None
    mem_off_heap: float | None
    cpu: float | None
    shared_mem_on_heap: float | None
    shared_mem_off_heap: float | None
    resources: dict[str, float] | None
    shared_resources: dict[str, float] | None
    def __init__(
        self,
        mem_on_heap: float | None = None,
        mem_off_heap: float | None = None,
        cpu: float | None = None,
        shared_mem_on_heap: float | None = None,
        shared_mem_off_heap: float | None = None,
        resources: dict[str, float] | None = None,
        shared_resources: dict[str, float] | None = None,
    ) -> None: ...

class LaunchClaim(TPayload):
    epoch: int
    counter: int
    def __init__(self, epoch: int, counter: int) -> None: ...

class CrashSeries(TPayload):
    count: int
    since_secs: int
    error: str
    def __init__(self, count: int, since_secs: int, error: str) -> None: ...

class WorkerLaunch(TPayload):
    node: str
    port: int
    claim: LaunchClaim
    queries: list[str]
    start_time_secs: int
    memory_mb: float
    released: bool | None
    crashes: CrashSeries | None
    tells_claims: bool | None
    def __init__(
        self,
        node: str,
        port: int,
        claim: LaunchClaim,
        queries: list[str],
        start_time_secs: int,
        memory_mb: float,
        released: bool | None = None,
        crashes: CrashSeries | None = None,
        tells_claims: bool | None = None,
    ) -> None: ...

class SlotReport(TPayload):
    claim: LaunchClaim
    state: str
    since_secs: int
    crashes: CrashSeries | None
    reason: str | None
    def __init__(
        self,
        claim: LaunchClaim,
        state: str,
        since_secs: int,
        crashes: CrashSeries | None = None,
        reason: str | None = None,
    ) -> None: ...

class Assignment(TPayload):
    master_code_dir: str
    node_host: dict[str, str] | None
    executor_node_port: dict[tuple[int, ...], NodeInfo] | None
    executor_start_time_secs: dict[tuple[int, ...], int] | None
    worker_resources: dict[NodeInfo, WorkerResources] | None
    total_shared_off_heap: dict[str, float] | None
    owner: str | None
    leader_epoch: int | None
    launches: list[WorkerLaunch] | None
    def __init__(
        self,
        master_code_dir: str,
        node_host: dict[str, str] | None = None,
        executor_node_port: dict[tuple[int, ...], NodeInfo] | None = None,
        executor_start_time_secs: dict[tuple[int, ...], int] | None = None,
        worker_resources: dict[NodeInfo, WorkerResources] | None = None,
        total_shared_off_heap: dict[str, float] | None = None,
        owner: str | None = None,
        leader_epoch: int | None = None,
        launches: list[WorkerLaunch] | None = None,
    ) -> None: ...

class TopologyStatus(IntEnum):
    ACTIVE = 1
    INACTIVE = 2
    REBALANCING = 3
    KILLED = 4

class Checkpoints(TPayload):
    folder: str
    storm_id: str
    name: str
    root: str | None
    shared: bool
    nodes: dict[str, str]
    ended_ms: int | None
    remove_on: list[str] | None
    hosts: dict[str, str] | None
    leader_epoch: int | None
    def __init__(
        self,
        folder: str,
        storm_id: str,
        name: str,
        root: str | None,
        shared: bool,
        nodes: dict[str, str],
        ended_ms: int | None = None,
        remove_on: list[str] | None = None,
        hosts: dict[str, str] | None = None,
        leader_epoch: int | None = None,
    ) -> None: ...

class KillOptions(TPayload):
    wait_secs: int | None
    purge: bool | None
    def __init__(self, wait_secs: int | None = None, purge: bool | None = None) -> None: ...

class RebalanceOptions(TPayload):
    wait_secs: int | None
    num_workers: int | None
    num_executors: dict[str, int] | None
    topology_resources_overrides: dict[str, dict[str, float]] | None
    topology_conf_overrides: str | None
    principal: str | None
    def __init__(
        self,
        wait_secs: int | None = None,
        num_workers: int | None = None,
        num_executors: dict[str, int] | None = None,
        topology_resources_overrides: dict[str, dict[str, float]] | None = None,
        topology_conf_overrides: str | None = None,
        principal: str | None = None,
    ) -> None: ...

class TopologyActionOptions(TPayload):
    kill_options: KillOptions | None
    rebalance_options: RebalanceOptions | None
    def __init__(
        self,
        kill_options: KillOptions | None = None,
        rebalance_options: RebalanceOptions | None = None,
    ) -> None: ...

class DebugOptions(TPayload):
    enable: bool | None
    samplingpct: float | None
    def __init__(self, enable: bool | None = None, samplingpct: float | None = None) -> None: ...

class StormBase(TPayload):
    name: str
    status: TopologyStatus
    num_workers: int
    component_executors: dict[str, int] | None
    launch_time_secs: int | None
    owner: str | None
    topology_action_options: TopologyActionOptions | None
    prev_status: TopologyStatus | None
    component_debug: dict[str, DebugOptions] | None
    principal: str | None
    topology_version: str | None
    leader_epoch: int | None
    deadline_ms: int | None
    checkpoints: Checkpoints | None
    def __init__(
        self,
        name: str,
        status: TopologyStatus,
        num_workers: int,
        component_executors: dict[str, int] | None = None,
        launch_time_secs: int | None = None,
        owner: str | None = None,
        topology_action_options: TopologyActionOptions | None = None,
        prev_status: TopologyStatus | None = None,
        component_debug: dict[str, DebugOptions] | None = None,
        principal: str | None = None,
        topology_version: str | None = None,
        leader_epoch: int | None = None,
        deadline_ms: int | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None: ...

class Credentials(TPayload):
    creds: dict[str, str]
    topoOwner: str | None
    leader_epoch: int | None
    def __init__(
        self, creds: dict[str, str], topoOwner: str | None = None, leader_epoch: int | None = None
    ) -> None: ...

class ErrorInfo(TPayload):
    error: str
    error_time_secs: int
    host: str | None
    port: int | None
    def __init__(
        self, error: str, error_time_secs: int, host: str | None = None, port: int | None = None
    ) -> None: ...

class TaskInfo(TPayload):
    component_id: str
    leader_epoch: int | None
    def __init__(self, component_id: str, leader_epoch: int | None = None) -> None: ...

class TaskHeartbeat(TPayload):
    time_secs: int
    uptime_secs: int
    stats: ExecutorStats | None
    def __init__(
        self, time_secs: int, uptime_secs: int, stats: ExecutorStats | None = None
    ) -> None: ...

class TopologyHealth(TPayload):
    state: str
    text: str
    crashes: CrashSeries | None
    queries: list[QueryActivity] | None
    def __init__(
        self,
        state: str,
        text: str,
        crashes: CrashSeries | None = None,
        queries: list[QueryActivity] | None = None,
    ) -> None: ...

class SupervisorInfo(TPayload):
    time_secs: int
    hostname: str
    assignment_id: str | None
    used_ports: list[int] | None
    meta: list[int] | None
    scheduler_meta: dict[str, str] | None
    uptime_secs: int | None
    version: str | None
    resources_map: dict[str, float] | None
    server_port: int | None
    stopped_workers: dict[int, LaunchClaim] | None
    http_port: int | None
    refuses: str | None
    slots: dict[int, SlotReport] | None
    stormkeeper: str | None
    def __init__(
        self,
        time_secs: int,
        hostname: str,
        assignment_id: str | None = None,
        used_ports: list[int] | None = None,
        meta: list[int] | None = None,
        scheduler_meta: dict[str, str] | None = None,
        uptime_secs: int | None = None,
        version: str | None = None,
        resources_map: dict[str, float] | None = None,
        server_port: int | None = None,
        stopped_workers: dict[int, LaunchClaim] | None = None,
        http_port: int | None = None,
        refuses: str | None = None,
        slots: dict[int, SlotReport] | None = None,
        stormkeeper: str | None = None,
    ) -> None: ...

class NimbusSummary(TPayload):
    host: str
    port: int
    uptime_secs: int
    isLeader: bool
    version: str
    tlsPort: int | None
    disk_fault: str | None
    stormkeeper: str | None
    def __init__(
        self,
        host: str,
        port: int,
        uptime_secs: int,
        isLeader: bool,
        version: str,
        tlsPort: int | None = None,
        disk_fault: str | None = None,
        stormkeeper: str | None = None,
    ) -> None: ...

class PrivateWorkerKey(TPayload):
    key: bytes
    userName: str
    expirationTimeMillis: int
    def __init__(self, key: bytes, userName: str, expirationTimeMillis: int) -> None: ...

class LogLevelAction(IntEnum):
    UNCHANGED = 1
    UPDATE = 2
    REMOVE = 3

class LogLevel(TPayload):
    action: LogLevelAction
    target_log_level: str | None
    reset_log_level_timeout_secs: int | None
    reset_log_level_timeout_epoch: int | None
    reset_log_level: str | None
    def __init__(
        self,
        action: LogLevelAction,
        target_log_level: str | None = None,
        reset_log_level_timeout_secs: int | None = None,
        reset_log_level_timeout_epoch: int | None = None,
        reset_log_level: str | None = None,
    ) -> None: ...

class LogConfig(TPayload):
    named_logger_level: dict[str, LogLevel] | None
    leader_epoch: int | None
    def __init__(
        self, named_logger_level: dict[str, LogLevel] | None = None, leader_epoch: int | None = None
    ) -> None: ...

class ProfileAction(IntEnum):
    JPROFILE_STOP = 0
    JPROFILE_START = 1
    JPROFILE_DUMP = 2
    JMAP_DUMP = 3
    JSTACK_DUMP = 4
    JVM_RESTART = 5

class ProfileRequest(TPayload):
    nodeInfo: NodeInfo
    action: ProfileAction
    time_stamp: int | None
    leader_epoch: int | None
    def __init__(
        self,
        nodeInfo: NodeInfo,
        action: ProfileAction,
        time_stamp: int | None = None,
        leader_epoch: int | None = None,
    ) -> None: ...
