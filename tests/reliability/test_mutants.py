"""Mutants are made in copies of the tree, whose tests must import the copy."""

import pytest

from tests.lab.reliability import mutants


@pytest.mark.long
def test_a_change_in_a_copy_is_noticed(tmp_path):
    tree = mutants.copied(tmp_path / "tree")
    tests = ["network/test_closed_form"]
    assert mutants.passes(tree, tests)
    (tree / "simulator" / "network" / "mean_cost.py").write_text("raise SystemExit\n")
    assert not mutants.passes(tree, tests)


@pytest.mark.parametrize("group", mutants.GROUPS)
def test_the_files_of_a_group_exist(group):
    changed, tests = mutants.GROUPS[group].values()
    assert all(any((mutants.ROOT / "simulator").glob(pattern)) for pattern in changed)
    assert all((mutants.ROOT / "tests" / f"{test}.py").is_file() for test in tests)
