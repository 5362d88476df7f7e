"""A step that is computed only where it is needed is its vector in all that torch does with it."""

import copy
import io
import pickle

import torch

from paceline.deploy.checkpoint import Freezer
from paceline.deploy.local_steps import Moved, Reached, Shift
from tests.helpers.cases import looped

BASE, END = torch.tensor([3.0, 1.0, 4.0, 1.0]), torch.tensor([2.0, 7.0, 1.0, 8.0])
DIFFERENCE = BASE - END
DONE = {
    "negative": lambda s: -s,
    "from another": lambda s: END - s,
    "another from it": lambda s: s - END,
    "in place": lambda s: END.clone().sub_(s),
    "function": lambda s: torch.sub(END, s),
    "from where a phase ended": lambda s: END.as_subclass(Reached) + s,
    "times": lambda s: 3.0 * s if type(s) is not Moved else 3.0 * (s + 0.0),
    "norm": lambda s: s.norm(),
    "power": lambda s: (s**2).sum(),
    "joined": lambda s: torch.cat([END, s]),
    "finite": lambda s: torch.isfinite(s).all(),
    "entries": lambda s: torch.tensor([float(s.numel()), len(s), s[1]]),
    "copy": copy.deepcopy,
    "file": lambda s: pickle.loads(pickle.dumps(s)),
}


@looped("kind", [Shift, Moved])
@looped("name", DONE)
def test_every_operation_sees_the_vector(name, kind):
    expected, actual = DONE[name](DIFFERENCE), DONE[name](kind(BASE, END))
    assert torch.equal(torch.as_tensor(actual), torch.as_tensor(expected))


def test_base_minus_it_is_the_end_itself():
    assert BASE - Moved(BASE, END) is END
    assert BASE - 1.0 * Shift(BASE, END) is END
    assert BASE - 0.1 * Moved(BASE, END) is END  # which has its rate in it


def test_a_checkpoint_has_both_ends():
    frozen = Freezer(torch.zeros(4), [], lambda handle: None).freeze(Moved(BASE, END))
    file = io.BytesIO()
    torch.save(frozen, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = Freezer(torch.zeros(4), [], lambda handle: None).thaw(saved, Moved(END, END))
    assert (again.base.tolist(), again.end.tolist()) == (BASE.tolist(), END.tolist())
