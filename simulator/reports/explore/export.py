"""Write the scenario with the sliders' values as a file for `paceline simulate`."""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...inputs import paths, untrusted
from ...load.document import override
from ...scenario.scenario import Scenario
from ...studies.display.display import extra
from .controls import put

if TYPE_CHECKING:
    from .explorer import Explorer, State

ELSEWHERE = "# It names files outside its folder: run paceline simulate --allow-paths\n"


def text(explorer: "Explorer", state: "State", overrides: Sequence[str]) -> str:
    """Return the text: the scenario's own file, comments included, with the sliders' values.

    With `overrides` (--set), or where the scenario extends another, it is the whole table without
    comments. Names of files become absolute, so that the text is valid in any folder.
    """
    moved = ", ".join(f"{name} = {value}" for name, value in state.items()) or "unchanged"
    changes = explorer.changes(state)
    what = f"paceline explore: {moved}"
    return changed(explorer.scenario, what, overrides, lambda document: put(document, changes))


def fitted(scenario: Scenario, sets: Sequence[str], overrides: Sequence[str]) -> str:
    """Return the text of a scenario with the values that a fit has found, as `--set` takes them."""

    def change(document: Any) -> None:
        for each in sets:
            override(document, each)

    return changed(scenario, f"paceline fit: {', '.join(sets)}", overrides, change)


def changed(
    scenario: Scenario, what: str, overrides: Sequence[str], change: Callable[[Any], None]
) -> str:
    """Return the text of a scenario after a `change` to its document, `what` made it in its head.

    The other arguments and the text are as of `text`.
    """
    tomlkit = extra("tomlkit", "explore")  # keeps comments
    own = _own(scenario, overrides)
    document: Any = tomlkit.parse(own) if own else tomlkit.item(scenario.table)
    change(document)
    folder = Path(scenario.file).absolute().parent
    named = {path: str(folder / name) for path, name in paths.named(document)}
    put(document, named)
    name = Path(scenario.file).name
    return f"# From {name} by {what}.\n{ELSEWHERE if named else ''}\n" + str(
        tomlkit.dumps(document)
    )


def _own(scenario: Scenario, overrides: Sequence[str]) -> str | None:
    """Return the text of the scenario's file; None where the scenario has more than that."""
    if overrides:
        return None
    try:
        content = untrusted.text(scenario.file)
        return content if tomllib.loads(content) == scenario.table else None
    except (OSError, ValueError) as error:
        raise InputError(f"{scenario.file}: cannot be read again ({error})") from None
