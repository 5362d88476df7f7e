"""Write a scenario with other values as a file for `paceline simulate`."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...inputs import paths, untrusted
from ...load.document import override
from ...scenario.scenario import Scenario
from ...studies.display.display import extra
from .explorer import put

if TYPE_CHECKING:
    from .explorer import Explorer

ELSEWHERE = "# It names files outside its folder: run paceline simulate --allow-paths\n"


def text(explorer: "Explorer", state: Mapping[str, str], overrides: Sequence[str]) -> str:
    """Return the text of a scenario with the sliders' values, as of `changed`."""
    moved = ", ".join(f"{name} = {value}" for name, value in state.items()) or "unchanged"
    what, changes = f"paceline explore: {moved}", explorer.changes(state)
    return changed(explorer.scenario, what, overrides, lambda document: put(document, changes))


def fitted(scenario: Scenario, sets: Sequence[str], overrides: Sequence[str]) -> str:
    """Return the text of a scenario with the fitted values, texts as for `--set`."""

    def change(document: Any) -> None:
        for assignment in sets:
            override(document, assignment)

    return changed(scenario, f"paceline fit: {', '.join(sets)}", overrides, change)


def changed(
    scenario: Scenario, what: str, overrides: Sequence[str], change: Callable[[Any], None]
) -> str:
    """Return the text of a scenario after a `change`, which `what` names in its head.

    That is the scenario's own file, comments included. With `overrides` (--set), or where the
    scenario extends another, it is the whole table without comments. Names of files become
    absolute, so that the text is valid in any folder.
    """
    tomlkit = extra("tomlkit", "explore")  # keeps comments
    file = Path(scenario.file).absolute()
    try:
        content = "" if overrides else untrusted.text(file)
        own = tomllib.loads(content) == scenario.table
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read again ({error})") from None
    document: Any = tomlkit.parse(content) if own else tomlkit.item(scenario.table)
    change(document)
    named = {path: str(file.parent / name) for path, name in paths.named(document)}
    put(document, named)
    head = f"# From {file.name} by {what}.\n{ELSEWHERE if named else ''}\n"
    return head + str(tomlkit.dumps(document))
