"""What TCP really gives: an experiment over links of the kernel, and the model beside it."""
