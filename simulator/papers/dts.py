"""dts."""

from simulator.papers.claim import Paper

PAPER = Paper(name="dts", title="dts", source="", settings="", claims=(), figures={})
