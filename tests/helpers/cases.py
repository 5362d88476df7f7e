"""Run cases inside one test, whose failures name the case."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def beside(file: str, name: str) -> str:
    """Return the text of a file beside a module."""
    return Path(file).with_name(name).read_text("utf-8")


def covered(samples: Any, expected: float) -> None:
    """Demand that the 99.9 % interval of the mean covers what is expected, and is narrow.

    So 95 % of worlds would pass all of fifty such demands.
    """
    error = np.std(samples, ddof=1) / np.sqrt(len(samples))
    assert abs(np.mean(samples) - expected) < 3.29 * error
    assert error < 0.02 * expected


@contextmanager
def named(case: object) -> Iterator[None]:
    """Add the name of a case to a failure inside the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {case!r}")
        raise


def looped(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a test for every case, in one item: `pytest.mark.parametrize` without its items.

    Every case has its own `tmp_path` and `monkeypatch`, and shares all other fixtures. The test is
    skipped only if every case skips it.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    rows = [*cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def loop(**fixtures: Any) -> None:
            reasons = []
            for index, case in enumerate(rows):
                # A `pytest.param` is a tuple of its values.
                values = case.values if hasattr(case, "marks") else case
                row = (values,) if len(keys) == 1 and values is case else values
                given = fixtures | dict(zip(keys, row, strict=True))
                if "tmp_path" in fixtures:
                    given["tmp_path"] = fixtures["tmp_path"] / f"{index}"
                    given["tmp_path"].mkdir()
                try:
                    with named(case), pytest.MonkeyPatch.context() as patch:
                        if "monkeypatch" in fixtures:
                            given["monkeypatch"] = patch
                        test(**given)
                except pytest.skip.Exception as reason:
                    reasons.append(reason)
            if reasons and len(reasons) == len(rows):
                raise reasons[0]

        parameters = inspect.signature(test).parameters.values()
        left = [parameter for parameter in parameters if parameter.name not in keys]
        loop.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        del loop.__wrapped__  # type: ignore[attr-defined]
        return loop

    return decorate
