"""Watch a deployed run through its telemetry, and steer its period, delay and codec.

`attach` joins a `controller` to a session. A `policy` decides from `inputs` (times as they are now,
each a `Level`) and an `outlook` (what is left of the run under each setting); `watch` says when the
run has left its prediction. Nothing here imports torch.
"""
