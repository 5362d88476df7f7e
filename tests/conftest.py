"""Hypothesis, made repeatable: `make test` and CI try the same inputs whenever they run.

`make explore-properties` tries new ones; an input that fails there becomes an @example.
"""

import functools
import gc
import os
from collections.abc import Iterator
from contextlib import nullcontext, suppress

# Tests run on every core: threads of BLAS beside them made those of softmax ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import typer.main
from hypothesis import HealthCheck, Phase, settings

from paceline import command_line
from paceline.simulator.results.figures import style

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,  # machines are shared and noisy
    suppress_health_check=[HealthCheck.too_slow],  # as are its clocks
    print_blob=True,
)
settings.register_profile("explore", parent=settings.get_profile("ci"), derandomize=False)
settings.register_profile(
    "first failure",  # for mutants: whether there is one, without a search for the smallest
    parent=settings.get_profile("ci"),
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("ci")

# Hypothesis also draws constants from the sources of our modules that are imported by then, which
# differ between the processes of a parallel run. Versions before 6.131 do not.
with suppress(ImportError):
    from hypothesis.internal.conjecture import providers

    providers.is_local_module_file = lambda path: False

# A process of ours runs one command, a test process hundreds: it makes the parser of all once.
typer.main.get_command = functools.cache(typer.main.get_command)

WRITTEN_FIGURES = command_line._figures


@pytest.fixture(scope="session", autouse=True)
def _without_figures() -> Iterator[None]:
    """Write figures only for tests that ask for them: they take most of the time of a short run."""
    with style.formats(()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            command_line,
            "_figures",
            lambda kinds: nullcontext() if kinds == "png,svg" else WRITTEN_FIGURES(kinds),
        )
        yield


@pytest.fixture
def figures() -> Iterator[None]:
    """Write the figures that a user gets without a word."""
    with style.formats(("png", "svg")):
        yield


def pytest_collection_finish() -> None:
    """Leave ten thousand tests out of searches for garbage: they took a quarter of the time."""
    gc.collect()
    gc.freeze()
