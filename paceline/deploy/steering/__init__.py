"""Watch a deployed run by its telemetry, and steer its period, delay and codec.

`attach` connects a controller to a session. In `policies`, a model decides from `inputs` (current
times, each a `Level`) and an `outlook` (the rest of the run under every setting), and a watch
reports when the run leaves its prediction. Nothing here imports torch.
"""
