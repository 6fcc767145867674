"""The election with the code on disks: real files, copied between Nimbuses."""

import pytest

from support.code import Cluster, activate, code_of
from support.nimbuses import Nimbus
from support.waiting import until

WC, OTHER = "wc-1-1700000000", "other-2-1700000000"


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path, inline=False)
    yield cluster
    cluster.close()


@pytest.fixture
def standing(cluster):
    """Lets a Nimbus that has a folder stand for election."""
    opened = []

    def stand(nimbus):
        opened.append(Nimbus(cluster.ensemble.session(), nimbus.id.host, nimbus.code.sync))
        return opened[-1]

    yield stand
    for each in opened:
        each.close()


def test_a_nimbus_with_an_empty_disk_queues_once_it_has_the_code(cluster, standing):
    holder, newcomer = cluster.start(1), cluster.start(2)
    for topology_id in (WC, OTHER):
        holder.code.upload(topology_id, code_of(topology_id))
        activate(holder, topology_id)
    newcomer.code.start()
    one = standing(newcomer)
    one.stand()
    assert newcomer.code.sync.missing() == {}
    # It led so far.
    cluster.stop(holder)
    assert one.wait_to_lead().active_storms() == sorted([WC, OTHER])


def test_code_whose_holder_is_gone_keeps_nobody_from_leading(cluster, standing, caplog):
    holder, left = cluster.start(1), cluster.start(2)
    holder.code.upload(WC, code_of(WC))
    activate(holder, WC)
    cluster.stop(holder)
    left.code.start()
    leader = standing(left).lead()
    assert leader.active_storms() == [WC]
    assert f"no live Nimbus has the code of {WC}" in caplog.text
    assert f"start the Nimbus that held it last: {holder.id}" in caplog.text
    # It heals by itself when the holder is back.
    cluster.start(1).code.start()
    until(lambda: left.code.sync.missing() == {})
