"""Test cases that run as one item."""

import pytest

from tests.helpers.cases import looped


def test_the_case_that_fails_is_named():
    seen = []

    @looped("number, word", [(1, "a"), pytest.param(2, "b", id="second"), (3, "c")])
    @looped("flag", [False, True])
    def check(number, word, flag):
        seen.append((number, word, flag))
        assert number != 2, word

    with pytest.raises(AssertionError, match="b") as failure:
        check()
    assert seen == [(1, "a", False), (1, "a", True), (2, "b", False)]
    assert len(failure.value.__notes__) == 2


@looped("number", [1, 2])
def test_each_case_has_a_folder_of_its_own(tmp_path, number):
    (tmp_path / f"{number}").touch()
    assert len([*tmp_path.iterdir()]) == 1


def test_cases_that_are_skipped_skip_the_test_only_together():
    def odd(number):
        if number % 2:
            pytest.skip("odd")

    looped("number", [1, 2])(odd)()
    with pytest.raises(pytest.skip.Exception):
        looped("number", [1, 3])(odd)()
