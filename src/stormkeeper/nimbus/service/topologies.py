"""What is told of one topology: what it is, how it does, and what went wrong."""

# ruff: noqa: N802

from __future__ import annotations

import json

from stormkeeper.errors import CallerError, UnknownComponentError
from stormkeeper.nimbus.service import pages
from stormkeeper.nimbus.service.topology_conf import without_secrets
from stormkeeper.nimbus.service.viewing import Viewing
from stormkeeper.thrift.nimbus import (
    ComponentPageInfo,
    GetInfoOptions,
    NumErrorsChoice,
    StormTopology,
    TopologyInfo,
    TopologyPageInfo,
)
from stormkeeper.thrift.records import StormBase


class Topologies(Viewing):
    """The methods that tell of a topology."""

    def getTopologyInfo(self, storm_id: str, /) -> TopologyInfo:
        """Return a topology's executors and errors, by its id."""
        return self.getTopologyInfoWithOpts(storm_id, GetInfoOptions())

    def getTopologyInfoByName(self, name: str, /) -> TopologyInfo:
        """Return a topology's executors and errors, by its name."""
        return self.getTopologyInfoByNameWithOpts(name, GetInfoOptions())

    def getTopologyInfoByNameWithOpts(self, name: str, options: GetInfoOptions, /) -> TopologyInfo:
        """Return the same with as many errors as are wanted."""
        return self._info(*self._named(name), options)

    def getTopologyInfoWithOpts(self, storm_id: str, options: GetInfoOptions, /) -> TopologyInfo:
        """Return the same with as many errors as are wanted."""
        return self._info(storm_id, self._base(storm_id), options)

    def getTopologyPageInfo(
        self, storm_id: str, window: str | None, include_sys: bool, /
    ) -> TopologyPageInfo:
        """Return a topology's page."""
        view = self._view(storm_id, self._base(storm_id))
        return pages.topology_page(
            view,
            self._heartbeats(view),
            self._given.storm.topology_errors(storm_id),
            window or pages.ALL_TIME,
            include_sys=include_sys,
        )

    def getComponentPageInfo(
        self, storm_id: str, component: str, window: str | None, include_sys: bool, /
    ) -> ComponentPageInfo:
        """Return a component's page."""
        view = self._view(storm_id, self._base(storm_id))
        try:
            return pages.component_page(
                view,
                component,
                self._heartbeats(view),
                self._given.storm.topology_errors(storm_id),
                window or pages.ALL_TIME,
                include_sys=include_sys,
            )
        except UnknownComponentError as error:
            raise CallerError(str(error)) from error

    def getTopologyConf(self, storm_id: str, /) -> str:
        """Return a topology's saved configuration as JSON.

        Storm's Nimbus saves the cluster's secrets with it, and has perhaps saved this one.
        """
        self._base(storm_id)
        return json.dumps(without_secrets(self._submitted(storm_id).conf), sort_keys=True)

    def getTopology(self, storm_id: str, /) -> StormTopology:
        """Return a topology as it runs: nothing of Storm's own is added to it here."""
        return self.getUserTopology(storm_id)

    def getUserTopology(self, storm_id: str, /) -> StormTopology:
        """Return a topology as it was submitted."""
        self._base(storm_id)
        return self._submitted(storm_id).topology

    def _info(self, storm_id: str, base: StormBase, options: GetInfoOptions) -> TopologyInfo:
        choice = options.num_err_choice
        choice = NumErrorsChoice.ALL if choice is None else choice
        view = self._view(storm_id, base)
        are_told = choice != NumErrorsChoice.NONE
        errors = self._given.storm.topology_errors(storm_id) if are_told else {}
        return pages.topology_info(view, self._heartbeats(view), errors, choice)
