"""The columns of a log: which quantity each holds, and in which unit.

A unit is said by a name (`step_ms`), by a `columns` table (`seconds = "dt [ms]"`) or by the cells
("412 ms"), and never guessed from the size of the numbers.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.simulator.inputs import log_table, units
from paceline.simulator.inputs.messages import nearest

_SPELLED = {
    1.0: "s sec secs second seconds",
    1e-3: "ms msec msecs millis millisecond milliseconds",
    1e-6: "us µs μs usec usecs micros microsecond microseconds",
    1e-9: "ns nsec nanos nanosecond nanoseconds",
}
UNITS = {word: scale for scale, words in _SPELLED.items() for word in words.split()}
SPELLINGS = {
    "step": "step steps global_step iteration iter it train_step",
    "seconds": "step_time steptime step_duration iteration_time iter_time batch_time duration dt "
    "time_per_step time_per_iteration time_per_iter train_step_time",
    "compute": "compute compute_time computing forward_backward gradient_time",
    "wait": "wait wait_time waiting comm comm_time communication communication_time sync sync_time "
    "allreduce allreduce_time all_reduce_time",
    "time": "time elapsed elapsed_time wall_time walltime timestamp runtime relative_time",
    "rank": "rank global_rank worker",
}
STEMS = {stem: quantity for quantity, words in SPELLINGS.items() for stem in words.split()}
TIMES = ("seconds", "compute", "wait", "time")
KNOWN = {  # whose meaning is documented, by us, W&B or TensorBoard; the first wins
    "step": "step", "_step": "step", "global_step": "step", "rank": "rank", "seconds": "seconds",
    "seconds_per_step": "seconds", "compute": "compute", "wait": "wait", "_runtime": "time",
    "_timestamp": "time", "wall time": "time",
}  # fmt: skip
PLACES = [*KNOWN]
WHOLE = 2.0**53  # beyond it a float skips whole numbers


@dataclass(frozen=True)
class Column:
    """A column by its `name`; `scale`: its unit (seconds), or None if nothing says it."""

    name: str
    quantity: str
    scale: float | None

    def value(self, cell: Any) -> float:
        """Return the number in a cell (SI units), nan if it is empty. Raises ValueError."""
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            return math.nan
        if isinstance(cell, bool) or not isinstance(cell, int | float | str):
            raise ValueError("not a number; write one")
        if isinstance(cell, str) and re.fullmatch(r"\s*[+-]?\d+,\d+\s*", cell):
            cell = cell.replace(",", ".")  # as many countries write
        timed = self.quantity in TIMES
        try:
            number = float("" if "_" in str(cell) else cell)  # "1_000" is Python's, no log's
        except (ValueError, OverflowError):
            if timed:
                return units.to_si(str(cell), "time")
            number = math.nan
        if not timed and not (0 <= number < WHOLE and number == int(number)):
            raise ValueError("not a whole number; write one, 0 or more")
        if not 0 <= number < math.inf:
            raise ValueError("not a time; write a finite number, 0 or more")
        if self.scale is None:
            raise ValueError(
                f"without a unit; call the column {self.name}_s or {self.name}_ms, or write "
                f'columns = {{ {self.quantity} = "{self.name} [ms]" }} beside the log, with its '
                "unit in brackets"
            )
        units.demand_within(number * self.scale, "time")
        return number * self.scale


def choose(names: Sequence[str], given: Mapping[str, str]) -> dict[str, Column]:
    """Return the column of each quantity that a log holds; `given`: the user's `columns` table.

    Raises ValueError if there is none of a step or of its time, or if several could be meant.
    """
    found = {quantity: _given(quantity, text, names) for quantity, text in given.items()}
    taken = {quantity: each.name for quantity, each in found.items()}

    def read(name: str) -> tuple[str, int] | None:
        place, column = _read(name)
        return (column.quantity, place) if column else None

    chosen = log_table.choose(names, taken, read, {"time": "seconds"})
    for quantity in chosen.keys() - found.keys():
        column = _read(chosen[quantity])[1]
        assert column
        found[quantity] = column
    lacks = [("the number", "step")] if "step" not in found else []
    if not {"seconds", "time"} & found.keys() and not {"compute", "wait"} <= found.keys():
        lacks.append(("the time", "seconds, step_s or step_ms"))
    for what, called in lacks:
        shown = ", ".join(names[:12]) + ", ..." * (len(names) > 12)
        raise ValueError(
            f"no column with {what} of a step among {shown}; call it {called}, or write "
            'columns = { step = "its name", seconds = "its name [ms]" }'
        )
    return found


def _given(quantity: str, text: str, names: Sequence[str]) -> Column:
    """Return the column that a user names, with its unit in brackets unless the name says it."""
    name, unit = text, None
    if text not in names and (parts := re.fullmatch(r"(.*?)\s*\[\s*([^\[\]]+?)\s*\]\s*", text)):
        name, unit = parts[1], parts[2].lower()
    wrong = None
    if name not in names:
        wrong = nearest(name, names, "its columns are")
    elif unit is not None and unit not in UNITS:
        wrong = nearest(unit, ("s", "ms", "us", "ns"), "units are")
    if wrong:
        raise ValueError(f"columns.{quantity} = {text!r}: {wrong}")
    read = _read(name)[1] if quantity in TIMES else Column(name, quantity, 1.0)
    says = read.scale if read else None
    return Column(name, quantity, says if unit is None else UNITS[unit])


def _read(name: str) -> tuple[int, Column | None]:
    """Read what a name says, None for nothing of steps or times; and its place among several."""
    # "run name - step_ms" in W&B's exports, "train/step_ms" in many logs
    bare = log_table.bare(name).rpartition("/")[2]
    if bare.lower() in KNOWN:
        return PLACES.index(bare.lower()), Column(name, KNOWN[bare.lower()], 1.0)
    words = log_table.words(bare)
    if not words:
        return len(PLACES), None
    if words[0] in UNITS and words[1:] in (["per", "step"], ["per", "iteration"], ["per", "iter"]):
        return len(PLACES), Column(name, "seconds", UNITS[words[0]])
    scale = UNITS.get(words[-1])
    quantity = STEMS.get("_".join(words[:-1] if scale else words))
    if scale and (words[:-1] == [] or quantity == "step"):  # "ms" or "step_ms": of a step
        quantity = "seconds"
    elif scale is None and quantity in ("step", "rank"):
        scale = 1.0
    known = quantity in (TIMES if scale != 1.0 else SPELLINGS)
    return len(PLACES), Column(name, str(quantity), scale) if known else None
