// The records that a Storm cluster keeps in ZooKeeper and sends to Pacemaker: Storm's names, field
// ids and types, which are the contract; the words are ours.
//
// Storm's defaults ("= {}") are left out: a field that is not set is None and is not written, and a
// reader of Storm's puts its own default in.
//
// (secret = "true") on a field: its value is in no repr, and so in no log.
// (storm2 = "i32") on a field: Storm 2 declares this type instead. Written as the reader expects it
// (serialization.Release), read either way.

// ---- heartbeats: what a worker sends every task.heartbeat.frequency.secs --------------------------

// Tasks task_start to task_end, both included, run by one executor.
struct ExecutorInfo {
  1: required i32 task_start
  2: required i32 task_end
}

struct GlobalStreamId {
  1: required string componentId
  2: required string streamId
}

// Every statistic is a map from window ("600", "10800", "86400", ":all-time") to a map from stream
// to a count or an average. A bolt counts by the stream that came in, a spout by the one it emits.

struct BoltStats {
  1: required map<string, map<GlobalStreamId, i64>> acked
  2: required map<string, map<GlobalStreamId, i64>> failed
  3: required map<string, map<GlobalStreamId, double>> process_ms_avg
  4: required map<string, map<GlobalStreamId, i64>> executed
  5: required map<string, map<GlobalStreamId, double>> execute_ms_avg
}

struct SpoutStats {
  1: required map<string, map<string, i64>> acked
  2: required map<string, map<string, i64>> failed
  3: required map<string, map<string, double>> complete_ms_avg
}

union ExecutorSpecificStats {
  1: BoltStats bolt
  2: SpoutStats spout
}

struct ExecutorStats {
  1: required map<string, map<string, i64>> emitted
  2: required map<string, map<string, i64>> transferred
  3: required ExecutorSpecificStats specific
  4: required double rate
  // Ours, as every id from 1000 up: the component's id. Storm's readers skip it: they have the
  // topology to look tasks up in.
  1000: optional string component
  // By window, the micro-batches whose rows were counted in part, because nobody read all of them;
  // left out where there is none.
  1001: optional map<string, i64> partial_batches
}

// Ours: what one running query of a worker does. Durations end at the heartbeat: a reader adds the
// heartbeat's age.
struct QueryActivity {
  // The query's id in the topology; in a plain script, the query's name.
  1: required string query
  // The newest batch that ended in this worker, and the milliseconds since.
  2: optional i64 last_batch
  3: optional i64 since_last_ms
  // The batch that runs, and for how many milliseconds; absent while the query waits for its trigger.
  4: optional i64 running_batch
  5: optional i64 running_ms
}

// A worker's heartbeat: /workerbeats/<storm id>/<node>-<port>.
struct ClusterWorkerHeartbeat {
  1: required string storm_id
  2: required map<ExecutorInfo, ExecutorStats> executor_stats
  3: required i64 time_secs (storm2 = "i32")
  4: required i32 uptime_secs
  // Ours: true in the last heartbeat of a worker whose queries have all ended by themselves.
  1000: optional bool completed
  // Ours: true while its queries wait, as the topology is not active.
  1001: optional bool inactive
  // Ours: each query that runs; absent where there is none.
  1002: optional list<QueryActivity> queries
  // Ours: milliseconds for which the worker's JVM has not answered; absent while it answers.
  1003: optional i64 jvm_silent_ms
  // Ours: why a running worker makes no progress, such as "no executor has come from ..."; absent
  // if it does.
  1004: optional string waiting
}

// Ours: the end of a heartbeat, behind its statistics, by the same ids.
struct WorkerActivity {
  4: required i32 uptime_secs
  1000: optional bool completed
  1001: optional bool inactive
  1002: optional list<QueryActivity> queries
  1003: optional i64 jvm_silent_ms
  1004: optional string waiting
}

// ---- assignments: which worker runs what ----------------------------------------------------------

// A supervisor (by id) and ports of it.
struct NodeInfo {
  1: required string node
  2: required set<i64> port
}

struct WorkerResources {
  1: optional double mem_on_heap
  2: optional double mem_off_heap
  3: optional double cpu
  4: optional double shared_mem_on_heap
  5: optional double shared_mem_off_heap
  6: optional map<string, double> resources
  7: optional map<string, double> shared_resources
}

// Ours: which launch of a worker is meant. Later ones are greater, the epoch (of the leader that
// ordered the launch) counting before the counter.
struct LaunchClaim {
  1: required i64 epoch
  2: required i64 counter
}

// Ours: crashes of the same work in a row, without a long run in between.
struct CrashSeries {
  1: required i32 count
  // When the first one was, in seconds since 1970.
  2: required i64 since_secs
  // How the last one ended, in one line.
  3: required string error
}

// Ours: a worker that a leader has launched, with the topology's queries that it runs. A released one
// is to stop, or has stopped; it is kept until its queries run elsewhere.
struct WorkerLaunch {
  1: required string node
  2: required i64 port
  3: required LaunchClaim claim
  4: required list<string> queries
  5: required i64 start_time_secs
  6: required double memory_mb
  7: optional bool released
  // How often its queries have crashed in a row before this launch, in whichever slots.
  8: optional CrashSeries crashes
  // Whether each launch of these queries so far writes /workerbeats/<id>/<query>-claimed before it
  // claims the query's checkpoint.
  9: optional bool tells_claims
}

// Ours: how a topology does, beside its status.
struct TopologyHealth {
  // running, starting, waiting, stuck, crashing or failed.
  1: required string state
  // More of it, in one line; empty where there is nothing to say.
  2: required string text
  3: optional CrashSeries crashes
  // On pages: what each query does.
  4: optional list<QueryActivity> queries
}

// Ours: what a supervisor says of a slot in which a worker is to run.
struct SlotReport {
  1: required LaunchClaim claim
  // The slot's state: waiting_for_code, waiting_for_environment, backing_off,
  // waiting_for_worker_start, running, ending, completed, failed.
  2: required string state
  // Since when, in seconds since 1970.
  3: required i64 since_secs
  4: optional CrashSeries crashes
  // What keeps the worker from its start, in one line.
  5: optional string reason
}

// The list keys are executors: [first task, last task].
//
// leader_epoch, here and below, is ours: which leader wrote the record, by the creation zxid of its
// lock. Storm's readers skip it.
struct Assignment {
  1: required string master_code_dir
  2: optional map<string, string> node_host
  3: optional map<list<i64>, NodeInfo> executor_node_port
  4: optional map<list<i64>, i64> executor_start_time_secs
  5: optional map<NodeInfo, WorkerResources> worker_resources
  6: optional map<string, double> total_shared_off_heap
  7: optional string owner
  1000: optional i64 leader_epoch
  1001: optional list<WorkerLaunch> launches
}

// ---- topologies -----------------------------------------------------------------------------------

enum TopologyStatus {
  ACTIVE = 1
  INACTIVE = 2
  REBALANCING = 3
  KILLED = 4
}

// Ours: the folder of a topology's checkpoints, in its base while it is there, and at
// /checkpoints/<id> when it is gone.
struct Checkpoints {
  // Its name: the id of the first topology that had it.
  1: required string folder
  // Who has it, or had it last: a topology's id, and its name.
  2: required string storm_id
  3: required string name
  // What it is in (topology.checkpoint.dir); absent: each machine's own.
  4: optional string root
  5: required bool shared
  // By query, the supervisor of the last launch; if shared, of the last before the assignment's.
  6: required map<string, string> nodes
  // When the topology was gone, in milliseconds since 1970.
  7: optional i64 ended_ms
  // The supervisors that have yet to remove it; absent: it is kept.
  8: optional list<string> remove_on
  // What the hosts of these supervisors were called last.
  9: optional map<string, string> hosts
  1000: optional i64 leader_epoch
}

struct KillOptions {
  1: optional i32 wait_secs
  // Ours: remove the checkpoints, too.
  1000: optional bool purge
}

struct RebalanceOptions {
  1: optional i32 wait_secs
  2: optional i32 num_workers
  3: optional map<string, i32> num_executors
  4: optional map<string, map<string, double>> topology_resources_overrides
  5: optional string topology_conf_overrides
  6: optional string principal
}

// The kill or the rebalance that a topology waits for.
union TopologyActionOptions {
  1: KillOptions kill_options
  2: RebalanceOptions rebalance_options
}

struct DebugOptions {
  1: optional bool enable
  2: optional double samplingpct
}

struct StormBase {
  1: required string name
  2: required TopologyStatus status
  3: required i32 num_workers
  4: optional map<string, i32> component_executors
  5: optional i32 launch_time_secs
  6: optional string owner
  7: optional TopologyActionOptions topology_action_options
  8: optional TopologyStatus prev_status
  9: optional map<string, DebugOptions> component_debug
  10: optional string principal
  11: optional string topology_version
  1000: optional i64 leader_epoch
  // Ours: when the kill or the rebalance is due, in milliseconds since 1970.
  1001: optional i64 deadline_ms
  // Ours: absent where the topology is a plain script, which has its own.
  1002: optional Checkpoints checkpoints
}

struct Credentials {
  1: required map<string, string> creds (secret = "true")
  2: optional string topoOwner
  1000: optional i64 leader_epoch
}

struct ErrorInfo {
  1: required string error
  2: required i32 error_time_secs
  3: optional string host
  4: optional i32 port
}

// ---- tasks: the tree of Storm's first years -------------------------------------------------------
//
// Storm kept these as Clojure data, before it had Thrift in ZooKeeper: the structs are ours.

// /tasks/<storm id>/<task>
struct TaskInfo {
  1: required string component_id
  1000: optional i64 leader_epoch
}

// /taskbeats/<storm id>/<task>
struct TaskHeartbeat {
  1: required i64 time_secs
  2: required i32 uptime_secs
  3: optional ExecutorStats stats
}

// ---- daemons --------------------------------------------------------------------------------------

struct SupervisorInfo {
  1: required i64 time_secs
  2: required string hostname
  3: optional string assignment_id
  4: optional list<i64> used_ports
  5: optional list<i64> meta
  6: optional map<string, string> scheduler_meta
  7: optional i64 uptime_secs
  8: optional string version
  9: optional map<string, double> resources_map
  10: optional i32 server_port
  // Ours: by port, the newest launch of which it knows that nothing runs any more.
  1000: optional map<i64, LaunchClaim> stopped_workers
  // Ours: where it serves its workers' logs over HTTP, at its hostname.
  1001: optional i32 http_port
  // Ours: why it takes no new work; absent where it does.
  1002: optional string refuses
  // Ours: by port, the slots whose worker does not simply run; absent where it does not tell.
  1003: optional map<i64, SlotReport> slots
  // Ours: the release of Stormkeeper that runs here; absent on Storm's own supervisors.
  1004: optional string stormkeeper
}

// tlsPort came with Storm 3.
struct NimbusSummary {
  1: required string host
  2: required i32 port
  3: required i32 uptime_secs
  4: required bool isLeader
  5: required string version
  6: optional i32 tlsPort
  // Ours: why its disk takes no files; absent where it does.
  1000: optional string disk_fault
  // Ours: the release of Stormkeeper that it is; absent of Storm's own.
  1001: optional string stormkeeper
}

struct PrivateWorkerKey {
  1: required binary key (secret = "true")
  2: required string userName
  3: required i64 expirationTimeMillis
}

// ---- log levels and profiling ---------------------------------------------------------------------

enum LogLevelAction {
  UNCHANGED = 1
  UPDATE = 2
  REMOVE = 3
}

struct LogLevel {
  1: required LogLevelAction action
  2: optional string target_log_level
  3: optional i32 reset_log_level_timeout_secs
  4: optional i64 reset_log_level_timeout_epoch
  5: optional string reset_log_level
}

// There is no field 1.
struct LogConfig {
  2: optional map<string, LogLevel> named_logger_level
  1000: optional i64 leader_epoch
}

enum ProfileAction {
  JPROFILE_STOP = 0
  JPROFILE_START = 1
  JPROFILE_DUMP = 2
  JMAP_DUMP = 3
  JSTACK_DUMP = 4
  JVM_RESTART = 5
}

struct ProfileRequest {
  1: required NodeInfo nodeInfo
  2: required ProfileAction action
  3: optional i64 time_stamp
  1000: optional i64 leader_epoch
}
