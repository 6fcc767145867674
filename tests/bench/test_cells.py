from pacemaker import cells


def labels(*patterns):
    return [cell.label for cell in cells.chosen(cells.all_cells(cells.FULL), patterns)]


def test_every_cell_has_a_label_of_its_own():
    assert len(set(labels())) == len(labels()) == 18 + 2 + 3 + 2


def test_cells_are_chosen_by_a_part_of_their_label():
    assert labels("send-3072-50x") == ["send-3072-50x1", "send-3072-50x16"]
    assert labels("children") == ["children-1000", "children-10000", "children-150000"]
    assert labels("get*1000x1", "memory")[-1] == "memory"
    assert labels("nothing of the kind") == []


def test_a_run_takes_the_time_of_its_cells_on_each_server():
    (children,) = cells.chosen(cells.all_cells(cells.FULL), ["children-1000"])[:1]
    three = cells.expected_secs([children], ["stormkeeper", "redis", "storm"], 3, 10.0)
    assert three == 3 * (2 * children.expected_secs + 10.0)
