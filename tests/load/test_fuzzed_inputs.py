"""Inputs with anything in any place: read, or refused by InputError; never anything else."""

import copy
import json
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.messages import toml
from paceline.simulator.load.document import shipped
from paceline.simulator.load.load import load, parse
from paceline.simulator.scenario.scenario import Scenario
from tests.helpers.cases import beside, looped
from tests.load.readers import CURVES, READERS, few, seeds
from tests.load.test_load import table as base

pytestmark = pytest.mark.long

SHIPPED = [*shipped().values()]
SECTIONS = tuple(Scenario.model_fields)
KEYS = st.sampled_from(
    [*SECTIONS, "name", "tau", "dist", "kind", "mean", "value", "group", "link", "workers",
     "compute", "latency", "lr", "momentum", "schedule", "between", "partition", "dirichlet",
     "components", "weight", "low", "high", "local-sgd", "ssgd", "adacomm", "outer", "file"]
) | st.text(max_size=5)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**310) | st.floats()
    | st.text(max_size=8) | st.dates() | st.times() | st.datetimes()
    | st.sampled_from(["300 ms", "1 Gbit/s", "constant", "mixture", "exponential", "steps",
                       "quadratic", "softmax", "bound", "ring", "given", "ssgd", "local-sgd"])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
ODD = st.sampled_from(
    [0, -1, 1e308, 1e-308, 5e-324, 10**30, float("nan"), float("inf"), "1e300 s", "1e-300 s", "0 s",
     "1e-12 bit/s", "1e300 bit/s", "", "x" * 300, [], {}, [[[]]], {"a": {"b": {}}}, True, None]
)  # fmt: skip
ANY = VALUES | ODD
QUICK = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def places(data, path=()):
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield (*path, key)
            yield from places(data[key], (*path, key))


@st.composite
def changed(draw, document):
    """A document with a few of its values dropped, replaced, renamed, or put elsewhere."""
    actual = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        every = [*places(actual)]
        if not every:
            break
        *way, last = draw(st.sampled_from(every))
        inner = actual
        for part in way:
            inner = inner[part]
        what = draw(st.sampled_from(["drop", "replace", "rename", "copy", "odd"]))
        if what == "drop":
            del inner[last]
        elif what == "rename" and isinstance(inner, dict):
            inner[draw(KEYS)] = inner.pop(last)
        elif what == "copy":
            *there, key = draw(st.sampled_from(every))
            source = document
            with suppress(KeyError, IndexError, TypeError):
                for part in (*there, key):
                    source = source[part]
                inner[last] = copy.deepcopy(source)
        else:
            # a copy: the next change may be to what is the same object in every example
            inner[last] = copy.deepcopy(draw(ANY if what == "replace" else ODD))
    return actual


def text(table):
    """A table as TOML, as far as that can be."""
    lines = (f"{json.dumps(key)} = {toml(value)}" for key, value in table.items())
    return "\n".join(lines).encode("utf-8", "replace")


def handled(name, data, folder):
    with suppress(InputError):
        READERS[name](data, folder)


@QUICK
@given(data=st.data())
def test_changed_scenarios(data, tmp_path):
    """They load or are refused; a few steps of those that load run, or are refused."""
    file = tmp_path / "my.toml"
    file.write_bytes(text(data.draw(changed(base() | {"title": "x"}))))
    with suppress(InputError):
        few(file)


@QUICK
@given(data=st.data())
def test_changed_shipped_scenarios(data):
    path = data.draw(st.sampled_from(SHIPPED))
    with suppress(InputError):
        parse(data.draw(changed(load(path).table)), file=str(path), folder=path.parent)


PROFILE = tomllib.loads(beside(__file__, "profile.toml"))


@QUICK
@given(data=st.data())
def test_changed_profiles(data, tmp_path):
    handled("profile", text(data.draw(changed(PROFILE))), tmp_path)


DOCUMENTS = ("run", "search", "swept", "comparison")


@pytest.mark.parametrize("name", DOCUMENTS)
@QUICK
@given(data=st.data())
def test_changed_documents(name, data, tmp_path):
    document = data.draw(changed(json.loads(seeds()[name][0])))
    handled(name, json.dumps(document, default=str).encode("utf-8", "replace"), tmp_path)


@looped("name", [*DOCUMENTS, "curves", "event", "kept"])
def test_what_commands_write_is_read(name, tmp_path):
    READERS[name](seeds()[name][0], tmp_path)


@st.composite
def cells(draw, table):
    """A CSV file with a few of its cells replaced, its lines cut, swapped, or doubled."""
    rows = [line.split(",") for line in table.splitlines()]
    for _ in range(draw(st.integers(1, 4))):
        row = draw(st.integers(0, len(rows) - 1))
        what = draw(st.sampled_from(["cell", "cut", "double", "swap"]))
        if what == "cell":
            odd = st.sampled_from(
                ["", "nan", "inf", "-1", "1e999", "9" * 40, '"', "x", "\0", "1_0"]
            )
            rows[row][draw(st.integers(0, len(rows[row]) - 1))] = draw(odd | st.text(max_size=4))
        elif what == "cut":
            rows[row] = rows[row][: draw(st.integers(1, len(rows[row])))]
        elif what == "double":
            rows.insert(row, rows[row] * draw(st.integers(1, 2)))
        else:
            other = draw(st.integers(0, len(rows) - 1))
            rows[row], rows[other] = rows[other], rows[row]
    return "\n".join(map(",".join, rows)).encode("utf-8", "replace")


TABLES = {
    "curves": CURVES,
    "event": "label,seed,node,kind,step,start,end,joined,due,bytes\n"
    + "".join(f"ssgd,0,{n},step,{k},{k},{k + 0.5},,,\n" for n in (0, 1) for k in range(4)),
    "samples": "from,to,latency,bandwidth\na,b,1 ms,1 Gbit/s\nb,c,2 ms,\n",
}


@pytest.mark.parametrize("name", TABLES)
@QUICK
@given(data=st.data())
def test_changed_tables(name, data, tmp_path):
    handled(name, data.draw(cells(TABLES[name])), tmp_path)


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(data=st.data())
def test_changed_bytes(name, data, tmp_path):
    """Bytes cut out, put in, or turned; what the fuzzer does at length."""
    actual = bytearray(data.draw(st.sampled_from(seeds()[name])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(actual)))
        until = at + data.draw(st.integers(0, 40))
        actual[at:until] = data.draw(st.binary(max_size=12))
    handled(name, bytes(actual), tmp_path)


@QUICK
@given(override=st.text(max_size=12) | st.builds("{}={}".format, KEYS, ANY.map(toml)))
def test_overrides(override):
    with suppress(InputError):
        parse(base(), overrides=[override])


def test_the_shipped_scenarios_are_found():
    assert len(SHIPPED) > 20
    assert Path(SHIPPED[0]).is_file()
