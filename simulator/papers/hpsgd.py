"""hpsgd."""

from simulator.papers.claim import Paper

PAPER = Paper(name="hpsgd", title="hpsgd", source="", settings="", claims=(), figures={})
