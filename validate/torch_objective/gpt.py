"""A transformer for text, small enough for a core: `objective.model = "gpt"`."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Gpt(nn.Module):
    """A small GPT-2 (Radford et al. 2019): layers normalised first, tied embedding, no dropout.

    From (batch, context) numbers of characters below `classes` to scores (batch, classes, context)
    of the next ones. Two layers of width 64 with four heads.
    """

    def __init__(self, context: int, classes: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.places = nn.Parameter(torch.empty(context, width))
        blocks = [Block(width) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        for each in (self.characters.weight, self.places):
            nn.init.normal_(each, std=0.02)
        for block in blocks:
            for last in (block.attended, block.shrink):  # of a branch, added 2 layers times
                nn.init.normal_(last.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, text: Tensor) -> Tensor:
        """Score the next character at every place."""
        x = self.blocks(self.characters(text.long()) + self.places)
        scores = functional.linear(self.norm(x), self.characters.weight)
        return scores.transpose(1, 2)


class Block(nn.Module):
    """Causal attention and a perceptron four times as wide, each added to what it reads."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self._heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, context, width) to the same shape."""
        read = self.read(self.before(x)).unflatten(-1, (3, self._heads, -1)).transpose(1, 3)
        query, key, value = read.unbind(dim=2)
        later = torch.full((x.shape[1],) * 2, -torch.inf, dtype=x.dtype, device=x.device).triu(1)
        match = query @ key.mT * query.shape[-1] ** -0.5 + later
        mixed = match.softmax(dim=-1) @ value  # torch.func.vmap has no rule for torch's own
        x = x + self.attended(mixed.transpose(1, 2).flatten(2))
        found: Tensor = x + self.shrink(functional.gelu(self.widen(self.between(x))))
        return found
