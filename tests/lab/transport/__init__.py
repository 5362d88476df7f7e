"""What TCP really gives: records of an experiment over links of the kernel, and their model."""
