"""A Pacemaker as it might be seen, for whatever is made of them."""

from stormkeeper.pacemaker.server.server_status import ServerSnapshot

SNAPSHOT = ServerSnapshot(
    instance="6b1f",
    version="1.2",
    engine="compiled",
    auth_method="DIGEST",
    is_serving=True,
    swept_ago=0.3,
    uptime=100.5,
    horizon=50.25,
    heartbeat_period=3,
    pulse_ttl=600,
    revision=2**40,
    keys=7,
    tombstones=2,
    pulses_received=1000,
    pulses_expired=4,
    bytes_held=21_000,
    max_bytes=1_000_000,
    recent_sizes=[*range(100, 0, -1)],
    requests={"send_pulse": 1000, "get_pulse": 20, "changes": 2, "other": 1},
    bytes_in=3_000_000,
    bytes_out=40_000,
    latency_bounds=(0.001, 0.01),
    latency_counts=[1000, 20, 3],
    latency_sum=0.75,
    connections=5,
    max_connections=100,
    certificate_ends=1_800_000_000.0,
)
