"""Steer a deployed run's period and delay by its telemetry.

`attach` connects a controller to a session. A model decides from `inputs` (current times, each a
`Level`) and an `Outlook` (the rest of the run under every setting). Nothing here imports torch.
"""
