"""hybrid."""

from simulator.papers.claim import Paper

PAPER = Paper(name="hybrid", title="hybrid", source="", settings="", claims=(), figures={})
