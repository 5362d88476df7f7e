"""Scenarios of refused.toml: each is refused, with where, what and what to write instead."""

import tomllib
from pathlib import Path

import pytest

from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load, parse
from tests.helpers.cases import named
from tests.helpers.worlds import scenario
from tests.load.test_load import JARGON
from tests.network.test_topology import CSV, PLATFORM

REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text("utf-8"))
COMMON = REFUSED.pop("common")
EDITED = {"clouds.csv": CSV, "cluster.xml": PLATFORM}


def put(case, folder):
    """Write the files of a case."""
    folder.mkdir()
    for name, text in case.get("files", {}).items():
        data = text.encode() if isinstance(text, str) else bytes.fromhex(text["hex"])
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    for name, (old, new) in case.get("edit", {}).items():
        assert not old or EDITED[name].count(old) == 1, old
        many = "".join(new.replace("{n}", str(n)) for n in range(case.get("times", 1)))
        text = EDITED[name].replace(old, many) if old else EDITED[name]
        (folder / name).write_text(text, encoding="utf-8")


def refusal(case, overrides, folder):
    with pytest.raises(InputError) as refused:
        load(case["scenario"], overrides) if "scenario" in case else parse(
            scenario({"name": "ssgd"}).table, file="my.toml", folder=folder, overrides=overrides
        )
    return str(refused.value)


@pytest.mark.parametrize("group", REFUSED)
def test_what_cannot_be_is_refused(group, tmp_path):
    for index, case in enumerate(REFUSED[group]):
        with named(case):
            put(case, tmp_path / f"{index}")
            overrides = [*COMMON.get(group, ()), *case.get("set", ())]
            text = refusal(case, overrides, tmp_path / f"{index}")
            assert [words for words in case["says"] if words not in text] == []
            assert [words for words in JARGON if words in text] == []
