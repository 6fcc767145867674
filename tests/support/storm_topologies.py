"""Topologies of Storm's own as its Nimbus leaves them, for a Nimbus of ours to tell of."""

from stormkeeper.nimbus.submitted import encode_conf
from stormkeeper.thrift.nimbus import (
    Bolt,
    ComponentCommon,
    ComponentObject,
    ShellComponent,
    SpoutSpec,
    StormTopology,
    StreamInfo,
)
from stormkeeper.thrift.records import StormBase, TopologyStatus
from stormkeeper.thrift.serialization import serialize


def leave(leading, example, **conf):
    """Leave one of Storm's examples to a Nimbus that leads, with Storm's own components.

    Parameters
    ----------
    leading
        A `support.nimbus_service.NimbusService`.
    example
        One of `support.statistics_examples`.
    **conf
        The topology's saved configuration.

    Returns
    -------
    The topology's id.
    """
    storm_id = example.answers["id"]
    code = ComponentObject(shell=ShellComponent("python", "x"))
    parts = {"spout": {}, "bolt": {}}
    for id_, declared in example._input["system_topology_components"].items():
        common = ComponentCommon(
            {},
            {"default": StreamInfo([], False)},
            declared["parallelism_hint"],
            declared["json_conf"],
        )
        cls = SpoutSpec if declared["type"] == "spout" else Bolt
        parts[declared["type"]][id_] = cls(code, common)
    leading.code.upload(
        storm_id,
        {
            "stormjar.jar": b"Java",
            "stormcode.ser": serialize(StormTopology(parts["spout"], parts["bolt"], {})),
            "stormconf.ser": encode_conf(conf),
        },
    )
    base = StormBase(example.answers["name"], TopologyStatus.ACTIVE, 2, owner="alice")
    leading.leader.activate_storm(storm_id, base)
    leading.leader.set_assignment(storm_id, example.assignment)
    return storm_id
