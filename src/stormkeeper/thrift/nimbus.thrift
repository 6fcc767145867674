// Nimbus's Thrift service: Storm's names, ids and types, which are the contract; the words are ours.
//
// Structs that Storm keeps in ZooKeeper, too, are in storm.thrift, and so is what is said there of
// defaults and annotations.
include "storm.thrift"

// ---- what a topology is made of ------------------------------------------------------------------

// An argument of a Java constructor.
union JavaObjectArg {
  1: i32 int_arg
  2: i64 long_arg
  3: string string_arg
  4: bool bool_arg
  5: binary binary_arg
  6: double double_arg
}

struct JavaObject {
  1: required string full_class_name
  2: required list<JavaObjectArg> args_list
}

struct NullStruct {}

// How an input's rows are spread over tasks. fields without any is Storm's global grouping.
union Grouping {
  1: list<string> fields
  2: NullStruct shuffle
  3: NullStruct all
  4: NullStruct none
  5: NullStruct direct
  6: JavaObject custom_object
  7: binary custom_serialized
  8: NullStruct local_or_shuffle
}

struct StreamInfo {
  1: required list<string> output_fields
  2: required bool direct
}

struct ShellComponent {
  1: string execution_command
  2: string script
}

// A component's code. Storm makes Java objects of it; ours is in the topology's package.
union ComponentObject {
  1: binary serialized_java
  2: ShellComponent shell
  3: JavaObject java_object
}

// Inputs by the stream that they come from, outputs by the stream's id.
struct ComponentCommon {
  1: required map<storm.GlobalStreamId, Grouping> inputs
  2: required map<string, StreamInfo> streams
  3: optional i32 parallelism_hint
  4: optional string json_conf
}

struct SpoutSpec {
  1: required ComponentObject spout_object
  2: required ComponentCommon common
}

struct Bolt {
  1: required ComponentObject bolt_object
  2: required ComponentCommon common
}

struct StateSpoutSpec {
  1: required ComponentObject state_spout_object
  2: required ComponentCommon common
}

struct SharedMemory {
  1: required string name
  2: optional double on_heap
  3: optional double off_heap_worker
  4: optional double off_heap_node
}

struct StormTopology {
  1: required map<string, SpoutSpec> spouts
  2: required map<string, Bolt> bolts
  3: required map<string, StateSpoutSpec> state_spouts
  4: optional list<binary> worker_hooks
  5: optional list<string> dependency_jars
  6: optional list<string> dependency_artifacts
  7: optional string storm_version
  8: optional string jdk_version
  9: optional map<string, set<string>> component_to_shared_memory
  10: optional map<string, SharedMemory> shared_memory
}

// ---- what is answered instead --------------------------------------------------------------------

exception AlreadyAliveException {
  1: required string msg
}

exception NotAliveException {
  1: required string msg
}

exception AuthorizationException {
  1: required string msg
}

exception InvalidTopologyException {
  1: required string msg
}

exception KeyNotFoundException {
  1: required string msg
}

exception IllegalStateException {
  1: required string msg
}

exception KeyAlreadyExistsException {
  1: required string msg
}

// ---- summaries -----------------------------------------------------------------------------------

struct TopologySummary {
  1: required string id
  2: required string name
  3: required i32 num_tasks
  4: required i32 num_executors
  5: required i32 num_workers
  6: required i32 uptime_secs
  7: required string status
  8: optional string storm_version
  9: optional string topology_version
  513: optional string sched_status
  514: optional string owner
  515: optional i32 replication_count
  521: optional double requested_memonheap
  522: optional double requested_memoffheap
  523: optional double requested_cpu
  524: optional double assigned_memonheap
  525: optional double assigned_memoffheap
  526: optional double assigned_cpu
  527: optional map<string, double> requested_generic_resources
  528: optional map<string, double> assigned_generic_resources
  // Ours: in lists and pages.
  1000: optional storm.TopologyHealth health
}

struct SupervisorSummary {
  1: required string host
  2: required i32 uptime_secs
  3: required i32 num_workers
  4: required i32 num_used_workers
  5: required string supervisor_id
  6: optional string version
  7: optional map<string, double> total_resources
  8: optional double used_mem
  9: optional double used_cpu
  10: optional double fragmented_mem
  11: optional double fragmented_cpu
  12: optional bool blacklisted
  13: optional map<string, double> used_generic_resources
  // Ours: why it takes no new work.
  1000: optional string refuses
  // Ours: whether it is one of Storm's own, which runs Java topologies only.
  1001: optional bool java_only
}

// There is no field 2: it was Nimbus's uptime, before there were several.
struct ClusterSummary {
  1: required list<SupervisorSummary> supervisors
  3: required list<TopologySummary> topologies
  4: required list<storm.NimbusSummary> nimbuses
}

// There is no field 6.
struct ExecutorSummary {
  1: required storm.ExecutorInfo executor_info
  2: required string component_id
  3: required string host
  4: required i32 port
  5: required i32 uptime_secs
  7: optional storm.ExecutorStats stats
}

struct TopologyInfo {
  1: required string id
  2: required string name
  3: required i32 uptime_secs
  4: required list<ExecutorSummary> executors
  5: required string status
  6: required map<string, list<storm.ErrorInfo>> errors
  7: optional map<string, storm.DebugOptions> component_debug
  8: optional string storm_version
  513: optional string sched_status
  514: optional string owner
  515: optional i32 replication_count
  521: optional double requested_memonheap
  522: optional double requested_memoffheap
  523: optional double requested_cpu
  524: optional double assigned_memonheap
  525: optional double assigned_memoffheap
  526: optional double assigned_cpu
  // Ours: in lists and pages.
  1000: optional storm.TopologyHealth health
}

// Ids of topologies that a user had.
struct TopologyHistoryInfo {
  1: list<string> topo_ids
}

struct OwnerResourceSummary {
  1: required string owner
  2: optional i32 total_topologies
  3: optional i32 total_executors
  4: optional i32 total_workers
  5: optional double memory_usage
  6: optional double cpu_usage
  7: optional double memory_guarantee
  8: optional double cpu_guarantee
  9: optional double memory_guarantee_remaining
  10: optional double cpu_guarantee_remaining
  11: optional i32 isolated_node_guarantee
  12: optional i32 total_tasks
  13: optional double requested_on_heap_memory
  14: optional double requested_off_heap_memory
  15: optional double requested_total_memory
  16: optional double requested_cpu
  17: optional double assigned_on_heap_memory
  18: optional double assigned_off_heap_memory
}

enum NumErrorsChoice {
  ALL = 0
  NONE = 1
  ONE = 2
}

struct GetInfoOptions {
  1: optional NumErrorsChoice num_err_choice
}

// ---- pages: what a user interface shows, with statistics -----------------------------------------

enum ComponentType {
  BOLT = 1
  SPOUT = 2
}

struct CommonAggregateStats {
  1: optional i32 num_executors
  2: optional i32 num_tasks
  3: optional i64 emitted
  4: optional i64 transferred
  5: optional i64 acked
  6: optional i64 failed
  7: optional map<string, double> resources_map
}

struct SpoutAggregateStats {
  1: optional double complete_latency_ms
}

struct BoltAggregateStats {
  1: optional double execute_latency_ms
  2: optional double process_latency_ms
  3: optional i64 executed
  4: optional double capacity
}

union SpecificAggregateStats {
  1: BoltAggregateStats bolt
  2: SpoutAggregateStats spout
}

// What all executors of a component did, or one of them, in a window.
struct ComponentAggregateStats {
  1: optional ComponentType type
  2: optional CommonAggregateStats common_stats
  3: optional SpecificAggregateStats specific_stats
  4: optional storm.ErrorInfo last_error
}

// Keyed by window, as a heartbeat's statistics.
struct TopologyStats {
  1: optional map<string, i64> window_to_emitted
  2: optional map<string, i64> window_to_transferred
  3: optional map<string, double> window_to_complete_latencies_ms
  4: optional map<string, i64> window_to_acked
  5: optional map<string, i64> window_to_failed
}

struct WorkerSummary {
  1: optional string supervisor_id
  2: optional string host
  3: optional i32 port
  4: optional string topology_id
  5: optional string topology_name
  6: optional i32 num_executors
  7: optional map<string, i64> component_to_num_tasks
  8: optional i32 time_secs
  9: optional i32 uptime_secs
  521: optional double requested_memonheap
  522: optional double requested_memoffheap
  523: optional double requested_cpu
  524: optional double assigned_memonheap
  525: optional double assigned_memoffheap
  526: optional double assigned_cpu
  527: optional string owner
  // Ours: how it is where it does not simply run, in one line; left out elsewhere.
  1000: optional string health
}

struct SupervisorPageInfo {
  1: optional list<SupervisorSummary> supervisor_summaries
  2: optional list<WorkerSummary> worker_summaries
}

struct TopologyPageInfo {
  1: required string id
  2: optional string name
  3: optional i32 uptime_secs
  4: optional string status
  5: optional i32 num_tasks
  6: optional i32 num_workers
  7: optional i32 num_executors
  8: optional string topology_conf (secret = "true")
  9: optional map<string, ComponentAggregateStats> id_to_spout_agg_stats
  10: optional map<string, ComponentAggregateStats> id_to_bolt_agg_stats
  11: optional string sched_status
  12: optional TopologyStats topology_stats
  13: optional string owner
  14: optional storm.DebugOptions debug_options
  15: optional i32 replication_count
  16: optional list<WorkerSummary> workers
  17: optional string storm_version
  18: optional string topology_version
  521: optional double requested_memonheap
  522: optional double requested_memoffheap
  523: optional double requested_cpu
  524: optional double assigned_memonheap
  525: optional double assigned_memoffheap
  526: optional double assigned_cpu
  527: optional double requested_regular_on_heap_memory
  528: optional double requested_shared_on_heap_memory
  529: optional double requested_regular_off_heap_memory
  530: optional double requested_shared_off_heap_memory
  531: optional double assigned_regular_on_heap_memory
  532: optional double assigned_shared_on_heap_memory
  533: optional double assigned_regular_off_heap_memory
  534: optional double assigned_shared_off_heap_memory
  535: optional map<string, double> requested_generic_resources
  536: optional map<string, double> assigned_generic_resources
  // Ours: in lists and pages.
  1000: optional storm.TopologyHealth health
}

struct ExecutorAggregateStats {
  1: optional ExecutorSummary exec_summary
  2: optional ComponentAggregateStats stats
}

struct ComponentPageInfo {
  1: required string component_id
  2: required ComponentType component_type
  3: optional string topology_id
  4: optional string topology_name
  5: optional i32 num_executors
  6: optional i32 num_tasks
  7: optional map<string, ComponentAggregateStats> window_to_stats
  8: optional map<storm.GlobalStreamId, ComponentAggregateStats> gsid_to_input_stats
  9: optional map<string, ComponentAggregateStats> sid_to_output_stats
  10: optional list<ExecutorAggregateStats> exec_stats
  11: optional list<storm.ErrorInfo> errors
  12: optional string eventlog_host
  13: optional i32 eventlog_port
  14: optional storm.DebugOptions debug_options
  15: optional string topology_status
  16: optional map<string, double> resources_map
}

// ---- submitting ----------------------------------------------------------------------------------

enum TopologyInitialStatus {
  ACTIVE = 1
  INACTIVE = 2
}

struct SubmitOptions {
  1: required TopologyInitialStatus initial_status
  2: optional storm.Credentials creds
}

// ---- blobs ---------------------------------------------------------------------------------------

enum AccessControlType {
  OTHER = 1
  USER = 2
}

// access is a sum of bits: 1 read, 2 write, 4 administer. Without name for OTHER.
struct AccessControl {
  1: required AccessControlType type
  2: optional string name
  3: required i32 access
}

struct SettableBlobMeta {
  1: required list<AccessControl> acl
  2: optional i32 replication_factor
}

struct ReadableBlobMeta {
  1: required SettableBlobMeta settable
  2: required i64 version
}

// The keys that came next, and the session to ask with for more; none: that was all.
struct ListBlobsResult {
  1: required list<string> keys
  2: required string session
}

struct BeginDownloadResult {
  1: required i64 version
  2: required string session
  3: optional i64 data_size
  // Ours: the first byte that is sent. Absent, or of Storm's Nimbus: 0.
  1000: optional i64 offset
}

// ---- supervisors and workers ---------------------------------------------------------------------

// What a supervisor notes of a slot.
struct LocalAssignment {
  1: required string topology_id
  2: required list<storm.ExecutorInfo> executors
  3: optional storm.WorkerResources resources
  4: optional double total_node_shared
  5: optional string owner
}

// By topology id.
struct SupervisorAssignments {
  1: optional map<string, storm.Assignment> storm_assignment
}

struct SupervisorWorkerHeartbeat {
  1: required string storm_id
  2: required list<storm.ExecutorInfo> executors
  3: required i64 time_secs
}

struct SupervisorWorkerHeartbeats {
  1: required string supervisor_id
  2: required list<SupervisorWorkerHeartbeat> worker_heartbeats
}

struct WorkerMetricPoint {
  1: required string metricName
  2: required i64 timestamp
  3: required double metricValue
  4: required string componentId
  5: required string executorId
  6: required string streamId
}

struct WorkerMetricList {
  1: list<WorkerMetricPoint> metrics
}

struct WorkerMetrics {
  1: required string topologyId
  2: required i32 port
  3: required string hostname
  4: required WorkerMetricList metricList
}

// ---- the service ---------------------------------------------------------------------------------

// An argument is required where Storm's clients always give it: without it a call is not carried out.
// On the wire that is no difference.
service Nimbus {
  void submitTopology(
    1: required string name,
    2: string uploadedJarLocation,
    3: required string jsonConf,
    4: required StormTopology topology)
    throws (
      1: AlreadyAliveException alive,
      2: InvalidTopologyException invalid,
      3: AuthorizationException denied)
  void submitTopologyWithOpts(
    1: required string name,
    2: string uploadedJarLocation,
    3: required string jsonConf,
    4: required StormTopology topology,
    5: required SubmitOptions options)
    throws (
      1: AlreadyAliveException alive,
      2: InvalidTopologyException invalid,
      3: AuthorizationException denied)
  void killTopology(1: required string name)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  void killTopologyWithOpts(1: required string name, 2: required storm.KillOptions options)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  void activate(1: required string name)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  void deactivate(1: required string name)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  void rebalance(1: required string name, 2: required storm.RebalanceOptions options)
    throws (
      1: NotAliveException missing,
      2: InvalidTopologyException invalid,
      3: AuthorizationException denied)
  void setLogConfig(1: required string name, 2: required storm.LogConfig config)
  storm.LogConfig getLogConfig(1: required string name)
  void debug(
    1: required string name,
    2: string component,
    3: required bool enable,
    4: required double samplingPercentage)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  void setWorkerProfiler(1: required string id, 2: required storm.ProfileRequest profileRequest)
  list<storm.ProfileRequest> getComponentPendingProfileActions(
    1: required string id,
    2: required string component_id,
    3: required storm.ProfileAction action)
  void uploadNewCredentials(1: required string name, 2: required storm.Credentials creds)
    throws (
      1: NotAliveException missing,
      2: InvalidTopologyException invalid,
      3: AuthorizationException denied)
  string beginCreateBlob(1: required string key, 2: required SettableBlobMeta meta)
    throws (1: AuthorizationException denied, 2: KeyAlreadyExistsException exists)
  string beginUpdateBlob(1: required string key)
    throws (1: AuthorizationException denied, 2: KeyNotFoundException missing)
  void uploadBlobChunk(1: required string session, 2: required binary chunk)
    throws (1: AuthorizationException denied)
  void finishBlobUpload(1: required string session) throws (1: AuthorizationException denied)
  void cancelBlobUpload(1: required string session) throws (1: AuthorizationException denied)
  ReadableBlobMeta getBlobMeta(1: required string key)
    throws (1: AuthorizationException denied, 2: KeyNotFoundException missing)
  void setBlobMeta(1: required string key, 2: required SettableBlobMeta meta)
    throws (1: AuthorizationException denied, 2: KeyNotFoundException missing)
  // The offset is ours: the first byte that is wanted. Storm's Nimbus skips it, and sends all.
  BeginDownloadResult beginBlobDownload(1: required string key, 1000: i64 offset)
    throws (1: AuthorizationException denied, 2: KeyNotFoundException missing)
  binary downloadBlobChunk(1: required string session) throws (1: AuthorizationException denied)
  void deleteBlob(1: required string key)
    throws (
      1: AuthorizationException denied,
      2: KeyNotFoundException missing,
      3: IllegalStateException used)
  ListBlobsResult listBlobs(1: string session)
  i32 getBlobReplication(1: required string key)
    throws (1: AuthorizationException denied, 2: KeyNotFoundException missing)
  i32 updateBlobReplication(1: required string key, 2: required i32 replication)
    throws (1: AuthorizationException denied, 2: KeyNotFoundException missing)
  void createStateInZookeeper(1: required string key)
  string beginFileUpload() throws (1: AuthorizationException denied)
  void uploadChunk(1: required string location, 2: required binary chunk)
    throws (1: AuthorizationException denied)
  void finishFileUpload(1: required string location) throws (1: AuthorizationException denied)
  binary downloadChunk(1: required string id) throws (1: AuthorizationException denied)
  string getNimbusConf() throws (1: AuthorizationException denied)
  ClusterSummary getClusterInfo() throws (1: AuthorizationException denied)
  list<TopologySummary> getTopologySummaries() throws (1: AuthorizationException denied)
  TopologySummary getTopologySummaryByName(1: required string name)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  TopologySummary getTopologySummary(1: required string id)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  storm.NimbusSummary getLeader() throws (1: AuthorizationException denied)
  bool isTopologyNameAllowed(1: required string name) throws (1: AuthorizationException denied)
  TopologyInfo getTopologyInfoByName(1: required string name)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  TopologyInfo getTopologyInfo(1: required string id)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  TopologyInfo getTopologyInfoByNameWithOpts(
    1: required string name,
    2: required GetInfoOptions options)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  TopologyInfo getTopologyInfoWithOpts(1: required string id, 2: required GetInfoOptions options)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  TopologyPageInfo getTopologyPageInfo(
    1: required string id,
    2: string window,
    3: required bool is_include_sys)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  SupervisorPageInfo getSupervisorPageInfo(
    1: string id,
    2: string host,
    3: required bool is_include_sys)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  ComponentPageInfo getComponentPageInfo(
    1: required string topology_id,
    2: required string component_id,
    3: string window,
    4: required bool is_include_sys)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  string getTopologyConf(1: required string id)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  StormTopology getTopology(1: required string id)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  StormTopology getUserTopology(1: required string id)
    throws (1: NotAliveException missing, 2: AuthorizationException denied)
  TopologyHistoryInfo getTopologyHistory(1: string user) throws (1: AuthorizationException denied)
  list<OwnerResourceSummary> getOwnerResourceSummaries(1: string owner)
    throws (1: AuthorizationException denied)
  SupervisorAssignments getSupervisorAssignments(1: required string node)
    throws (1: AuthorizationException denied)
  void sendSupervisorWorkerHeartbeats(1: required SupervisorWorkerHeartbeats heartbeats)
    throws (1: AuthorizationException denied)
  void sendSupervisorWorkerHeartbeat(1: required SupervisorWorkerHeartbeat heatbeat)
    throws (1: AuthorizationException denied, 2: NotAliveException missing)
  void processWorkerMetrics(1: required WorkerMetrics metrics)
  bool isRemoteBlobExists(1: required string blobKey) throws (1: AuthorizationException denied)
}
