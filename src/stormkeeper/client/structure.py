"""A topology as Storm's clients and tools see it, out of its description; pure.

They see components, what each reads from, and parallelism. A component's code stands in no record:
it is in the package, and the record names the script in it.
"""

from __future__ import annotations

from typing import Final

import stormkeeper
from stormkeeper.thrift.nimbus import (
    Bolt,
    ComponentCommon,
    ComponentObject,
    Grouping,
    NullStruct,
    ShellComponent,
    SpoutSpec,
    StormTopology,
    StreamInfo,
)
from stormkeeper.thrift.records import GlobalStreamId
from stormkeeper.topology.component import ComponentDescription
from stormkeeper.topology.description import Description

#: The one stream that a component of ours has: the rows of its DataFrame.
STREAM: Final = "default"


def storm_topology(description: Description, script: str) -> StormTopology:
    """Return the record of a topology.

    Parameters
    ----------
    description
        The topology's. A plain script is one spout, which is called as the description is.
    script
        Its name in the package.
    """
    components = description.components or (ComponentDescription(description.name, "spout", (), 1),)
    read = {source for component in components for source in component.inputs}
    code = ComponentObject(shell=ShellComponent("python", script))

    def common(component: ComponentDescription) -> ComponentCommon:
        return ComponentCommon(
            inputs={
                # Spark spreads rows over tasks as it likes.
                GlobalStreamId(source, STREAM): Grouping(shuffle=NullStruct())
                for source in component.inputs
            },
            streams={STREAM: StreamInfo([], False)} if component.id in read else {},
            parallelism_hint=component.parallelism,
        )

    return StormTopology(
        spouts={one.id: SpoutSpec(code, common(one)) for one in components if one.kind == "spout"},
        bolts={one.id: Bolt(code, common(one)) for one in components if one.kind == "bolt"},
        state_spouts={},
        storm_version=stormkeeper.__version__,
    )
