"""All seeds and workers at once, as NumPy arrays: the reference's numbers, sooner.

Import `run.run`. A program runs once for all (`node`); its clocks are worked out afterwards from a
recorded schedule (`schedule`, `clocks`). Where workers or seeds differ in what they do, the run is
`unsupported`, and the reference engine takes it.
"""
