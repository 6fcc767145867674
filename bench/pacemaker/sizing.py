"""What a cluster's heartbeats take: a calculation from measured figures and stated assumptions."""

import math
from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Assumptions:
    """What the calculation stands on; times in seconds, sizes in bytes.

    Measured
        cpu_secs_per_pulse, memory_per_payload, memory_empty_mib, changes_per_sec
    Measured with the pipeline, by hand
        spark_reads_per_sec
    Measured with its decoder
        decoded_per_sec
    Chosen
        everything else
    """

    #: Server CPU for a pulse that comes alone on its connection, as workers' do.
    cpu_secs_per_pulse: float
    #: Resident memory for each byte of values stored, after overwrites.
    memory_per_payload: float
    #: Resident memory of a Pacemaker that holds nothing.
    memory_empty_mib: float
    #: Pulses that one process with the plain client, such as Nimbus, takes in by changes,
    #: from any number of servers.
    changes_per_sec: float
    #: Pulses that Spark reads, on one core: half of the least that it did with two
    #: (docs/heartbeat-pipeline.md).
    spark_reads_per_sec: float = 30_000.0
    #: Heartbeats that the compiled decoder decodes, on one core (bench/results/decoding.json).
    decoded_per_sec: float = 43_593.0
    workers_per_node: int = 24
    #: ``task.heartbeat.frequency.secs``
    beat_secs: float = 3.0
    #: ``nimbus.monitor.freq.secs``
    nimbus_read_secs: float = 10.0
    #: ``pipeline.trigger.secs``
    trigger_secs: float = 5.0
    pulse_bytes: int = 3_072
    #: Path, frame and message around a pulse; the answer to it.
    message_bytes: int = 130
    answer_bytes: int = 19
    #: Ethernet, IP and TCP headers of a segment, and what of a message fits one.
    header_bytes: int = 78
    segment_bytes: int = 1_448
    #: Share of its core that a Pacemaker is to use at most in quiet times: the rest is for a
    #: neighbour's workers, for readers, and for everyone at once after a break in the network.
    busy_share: float = 0.5
    #: Connections that one Pacemaker is to hold at most in quiet times: of the 262,144 descriptors
    #: that the unit file in deploy/ gives it, so that a dead neighbour's workers find room.
    connections_each: int = 100_000
    #: What one network card carries, each way, at the same share.
    card_bits_per_sec: float = 10e9


@dataclass(frozen=True)
class Size:
    """What one cluster takes; rates are per second over all Pacemakers."""

    nodes: int
    workers: int
    pulses_per_sec: float
    bits_in_per_sec: float
    bits_out_per_sec: float
    cores: float
    memory_mib: float
    pacemakers: int
    limited_by: str
    nimbus_secs: float
    nimbus_share: float
    spark_read_cores: float
    spark_decode_cores: float


def size(nodes, assumed):
    """Return the size of a cluster of so many nodes."""
    workers = nodes * assumed.workers_per_node
    rate = workers / assumed.beat_secs
    cores = rate * assumed.cpu_secs_per_pulse
    bits_in = rate * _on_the_wire(assumed.pulse_bytes + assumed.message_bytes, assumed) * 8
    # Each reader takes every worker's newest pulse once in its period; answers go to the workers.
    reads = workers * min(1.0, assumed.nimbus_read_secs / assumed.beat_secs)
    reads_per_sec = reads / assumed.nimbus_read_secs + reads / assumed.trigger_secs
    bits_out = (
        rate * _on_the_wire(assumed.answer_bytes, assumed)
        + reads_per_sec * _on_the_wire(assumed.pulse_bytes + assumed.message_bytes, assumed)
    ) * 8
    card = assumed.card_bits_per_sec
    needed = {
        "CPU": math.ceil(cores / assumed.busy_share),
        "connections": math.ceil(workers / assumed.connections_each),
        "network": math.ceil(max(bits_in, bits_out) / (card * assumed.busy_share)),
    }
    limited_by = max(needed, key=needed.get)
    # One more than needed, and never fewer than two: any one may die.
    count = needed[limited_by] + 1
    nimbus_secs = workers / assumed.changes_per_sec
    values_mib = workers * assumed.pulse_bytes * assumed.memory_per_payload / MIB
    return Size(
        nodes=nodes,
        workers=workers,
        pulses_per_sec=rate,
        bits_in_per_sec=bits_in,
        bits_out_per_sec=bits_out,
        cores=cores,
        memory_mib=count * assumed.memory_empty_mib + values_mib,
        pacemakers=count,
        limited_by=limited_by if needed[limited_by] > 1 else "being two",
        nimbus_secs=nimbus_secs,
        nimbus_share=nimbus_secs / assumed.nimbus_read_secs,
        spark_read_cores=workers / assumed.trigger_secs / assumed.spark_reads_per_sec,
        spark_decode_cores=workers / assumed.trigger_secs / assumed.decoded_per_sec,
    )


def _on_the_wire(payload, assumed):
    segments = math.ceil(payload / assumed.segment_bytes)
    return payload + segments * assumed.header_bytes
