"""Real learning curves of small models, and how well they are predicted.

`python -m tests.lab.evidence` trains missing runs; `python -m tests.lab.evidence score` predicts
them and writes docs/evidence/validation/learning-curves.md. The curves lie beside it.
"""
