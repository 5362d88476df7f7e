"""Series: the runs of one algorithm in one RUN, predicted or measured, drawn as one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...results.figures.chart import WORDS, Look, apart
from ...results.figures.curves import Curves
from ...results.figures.style import DASHES
from ...results.run import Run
from .reading import FoundRun

Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """The runs of one algorithm, one per seed; `row`: their summary.

    `measured`: it is a measurement beside a prediction. The two share `key`, by which the page
    hides them, and `title`; `name` tells them apart.
    """

    key: str
    title: str
    name: str
    label: str
    found: FoundRun
    measured: bool
    look: Look
    row: Row
    runs: Sequence[Run]

    @property
    def curves(self) -> Curves:
        """The runs as a figure draws them."""
        name = self.name if self.measured else self.title
        return Curves(name, self.runs, self.look, self.key, self.measured, self.row)


def series(every: Sequence[FoundRun]) -> list[Series]:
    """Return the series of each algorithm in each RUN, predicted and measured.

    An algorithm has one colour and one symbol on the whole page. Dashes tell the algorithms of a
    single RUN apart, and the RUNs where there are several. Measured lines are dotted, with open
    symbols. Words that all labels share are in no title.
    """
    labels = [*dict.fromkeys(k for f in every for run in f.sides.values() for k in run.rows)]
    brief = dict(zip(labels, apart(labels), strict=True))
    found: list[Series] = []
    for number, each in enumerate(every):
        several = len(each.sides) > 1
        for side, run in each.sides.items():
            for label, row in run.rows.items():
                place, title = labels.index(label), brief[label]
                look = Look.at(place)._replace(width=2.0)
                if len(every) > 1:
                    look = look._replace(dash=[*DASHES][number % len(DASHES)])
                    title = f"{each.name}: {title}" if len(labels) > 1 else each.name
                measured = side == "measured" and several
                if measured:
                    look = look._replace(dash="dot", width=1.4, hollow=True)
                name = f"{title}, {side}" if several else title
                runs = run.runs.get(label, ())
                key = f"l{number}-{place}"
                found.append(Series(key, title, name, label, each, measured, look, row, runs))
    return found


def shared(labels: Sequence[str]) -> str:
    """Return the words that `apart` removes, in the order of the first label."""
    if not labels or apart(labels) == [*labels]:
        return ""
    rest = WORDS.split(apart(labels)[0])
    return " ".join(word for word in WORDS.split(labels[0]) if word not in rest)
