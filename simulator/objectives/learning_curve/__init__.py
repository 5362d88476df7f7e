"""The loss of a model that the user trains: curve, batch size, and what an algorithm costs.

Import `curve` (the loss of a baseline against tokens), `batch` (how a larger batch helps) and
`evidence` (what published runs, and the user's own, say of local steps); `objective` puts them
together for an algorithm, and `surrogate` is what its program runs on where no evidence speaks of
it. Nothing here imports an engine: `engines.normalisation` finds the rates.
"""
