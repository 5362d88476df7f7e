"""Convert files of processes to runs: `measure.measure`; `evidence` decides if a run counts."""
