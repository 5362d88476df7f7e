"""Cases of one test in one item, in place of an item for each."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def looped(
    names: str | tuple[str, ...], cases: Iterable[Any]
) -> Callable[[Callable[..., None]], Any]:
    """Run a test for each of some cases, as `pytest.mark.parametrize` does, but as one test.

    A failure names its case, which has a `tmp_path` and a `monkeypatch` of its own. It is skipped
    where all cases are.
    """
    keys, listed = (names,) if isinstance(names, str) else names, list(cases)

    def decorate(test: Callable[..., None]) -> Any:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            skipped = []
            for number, case in enumerate(listed):
                values = dict(zip(keys, case if len(keys) > 1 else (case,), strict=True))
                own = dict(fixtures)
                if "tmp_path" in own:
                    own["tmp_path"] = own["tmp_path"] / str(number)
                    own["tmp_path"].mkdir()
                try:
                    with pytest.MonkeyPatch.context() as patch:
                        if "monkeypatch" in own:
                            own["monkeypatch"] = patch
                        test(**own, **values)
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except BaseException as error:
                    case_name = ", ".join(f"{key} = {value!r}" for key, value in values.items())
                    error.add_note(f"in the case {case_name}")
                    raise
            if len(skipped) == len(listed):
                pytest.skip("; ".join(dict.fromkeys(skipped)))

        signature = inspect.signature(test)
        left = [one for one in signature.parameters.values() if one.name not in keys]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
