"""``storm simulate``: sends the heartbeats of simulated workers to Pacemakers."""

import json
from pathlib import Path

import click

from stormkeeper.cli.options import conf_options, examples, faults, load_conf

_AT_LEAST_ONE = click.IntRange(min=1)
_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command(
    epilog=examples(
        "storm simulate -c pacemaker.servers=localhost:6699 --profile small --duration 60",
        "storm simulate --nodes 3000 --workers-per-node 24 --rate 1200 --clean",
        "storm simulate --nodes 10 --workers-per-node 4 --faults --truth truth.jsonl --seed 7",
    )
)
@click.option(
    "--profile",
    type=click.Choice(["small", "large", "huge"]),
    default="small",
    show_default=True,
    help="277 nodes with 24 workers each: 400 topologies, 100 large ones, or one huge one.",
)
@click.option("--nodes", type=_AT_LEAST_ONE, metavar="N", help="In place of the profile's.")
@click.option(
    "--workers-per-node", type=_AT_LEAST_ONE, metavar="M", help="In place of the profile's."
)
@click.option(
    "--topologies",
    type=_AT_LEAST_ONE,
    metavar="T",
    help="In place of the profile's, in proportion to the workers.",
)
@click.option(
    "--rate",
    type=_POSITIVE,
    metavar="R",
    help="Heartbeats a second of all workers together; without it each worker beats every"
    " task.heartbeat.frequency.secs.",
)
@click.option(
    "--count-every",
    type=_AT_LEAST_ONE,
    default=5,
    show_default=True,
    metavar="K",
    help="A worker's counters are new in every K-th heartbeat, its times in each: less to encode.",
)
@click.option(
    "--connections",
    type=_AT_LEAST_ONE,
    metavar="C",
    help="Connections that the nodes share; by default one for each node.",
)
@click.option(
    "--storm",
    "storm_release",
    type=click.Choice(["2", "3"]),
    help="The release of Storm that reads them.",
)
@click.option(
    "--components", is_flag=True, help="Executors name their components, as Stormkeeper's do."
)
@click.option("--faults", "has_faults", is_flag=True, help="Add faults, one of each kind.")
@click.option(
    "--truth",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the simulated events to FILE, as lines of JSON.",
)
@click.option("--no-counters", is_flag=True, help="Leave the workers' counters out of FILE.")
@click.option("--duration", type=_POSITIVE, metavar="SECONDS", help="End after that time.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the random choices.",
)
@click.option("--clean", "cleans", is_flag=True, help="Delete the simulated pulses at the end.")
@click.option("--beside", is_flag=True, help="Run although there are pulses of real topologies.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary at the end, as JSON.")
@conf_options
def simulate(
    *,
    profile: str,
    nodes: int | None,
    workers_per_node: int | None,
    topologies: int | None,
    rate: float | None,
    count_every: int,
    connections: int | None,
    storm_release: str | None,
    components: bool,
    has_faults: bool,
    truth: Path | None,
    no_counters: bool,
    duration: float | None,
    seed: int,
    cleans: bool,
    beside: bool,
    as_json: bool,
) -> None:
    """Send the heartbeats of simulated workers to the Pacemakers.

    The command sends the heartbeats of a whole Storm cluster, in Storm's format, to the Pacemakers
    of pacemaker.servers, until --duration is over or Ctrl-C. storm.meta.serialization.delegate sets
    their compression. Topologies are named simulated-SEED-001 and so on. Every five seconds stderr
    has a line with heartbeats sent and acknowledged, and the delay behind the schedule.

    It refuses to start if a Pacemaker holds pulses of other topologies, so that simulated workers
    are not taken for real ones; --beside allows it.

    Exit code 0: it ended normally. 1: it was refused, a Pacemaker did not answer, or FILE cannot be
    written. 2: wrong usage or configuration.
    """
    from stormkeeper.daemon.lifecycle import StopSignals

    with StopSignals() as stop, faults():
        conf = load_conf()
        from stormkeeper.simulation import process
        from stormkeeper.simulation.cluster import PROFILES
        from stormkeeper.thrift.writer import Release

        sized = PROFILES[profile].sized(nodes, workers_per_node, topologies)
        period = sized.workers / rate if rate else float(conf["task.heartbeat.frequency.secs"])
        options = process.SimulationOptions(
            sized,
            seed=seed,
            period_secs=period,
            count_every=count_every,
            connections=connections or sized.nodes,
            release=Release(int(storm_release)) if storm_release else None,
            names_components=components,
            has_troubles=has_faults,
            duration_secs=duration,
            cleans=cleans,
            beside=beside,
            tells_counters=not no_counters,
        )
        summary = process.run(conf, options, truth, stop, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        click.echo(
            f"{summary['acknowledged']} of {summary['sent']} heartbeats acknowledged in"
            f" {summary['seconds']} s"
        )
