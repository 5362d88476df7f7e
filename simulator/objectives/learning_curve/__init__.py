"""Predict the loss of the user's model: curve, batch, and an algorithm's excess.

Import `curve` (the loss of a baseline against tokens), `batch` (the effect of larger batches) and
`evidence` (the cost of local steps in published runs and the user's runs). `objective` combines
them for an algorithm; without evidence its program runs on a `surrogate`. Nothing here imports an
engine: `engines.normalisation` finds the rates.
"""
