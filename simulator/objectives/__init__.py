"""Predict the error: workers' gradients, and the loss that an observer evaluates.

Import `build.build` to make a scenario's objective, `objective` for the protocol, `plugins` for
objectives of other packages (entry point `paceline.objectives`). NumPy only; torch has its
objective in `paceline.validate.torch_objective`.
"""
