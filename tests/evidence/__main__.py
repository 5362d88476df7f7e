"""Train the cells that are missing."""

from tests.evidence import cells

cells.train()
