"""Real learning curves of small models, and how well they are predicted.

`python -m tests.lab.evidence` trains what is missing, `python -m tests.lab.evidence score` predicts
it and writes docs/evidence/validation/learning-curves.md. The curves lie beside it.
"""
