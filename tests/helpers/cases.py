"""Loops over cases inside one test, whose failures name the case."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def named(case: object) -> Iterator[None]:
    """Add the name of a case to whatever fails inside the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {case!r}")
        raise


def looped(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a test once for each row, in one test: `pytest.mark.parametrize` without its items.

    `names`: of the arguments that a row gives, as there. Each row has a `tmp_path` of its own; all
    other fixtures are shared.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def loop(**fixtures: Any) -> None:
            for index, row in enumerate(rows):
                given = dict(zip(keys, [row] if len(keys) == 1 else row, strict=True))
                if "tmp_path" in fixtures:
                    given["tmp_path"] = fixtures["tmp_path"] / f"{index}"
                    given["tmp_path"].mkdir()
                with named(row):
                    test(**fixtures | given)

        left = [each for each in inspect.signature(test).parameters.values()
                if each.name not in keys]  # fmt: skip
        loop.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        del loop.__wrapped__  # type: ignore[attr-defined]
        return loop

    return decorate
