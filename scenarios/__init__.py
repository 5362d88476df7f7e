"""Scenarios that come with Paceline: `paceline list scenarios`. No code lives here.

A scenario is named by its path without `.toml`: `quickstart`, `dts/figure1`. The folders: a paper's
(`adacomm`, `dts`, `hpsgd`, `hybrid`), one scenario for each algorithm (`programs`), language models
(`llm`), fleets with published times (`fleets`), tables of regions and platforms (`networks`), and
what `paceline validate` runs (`validation`).
"""
