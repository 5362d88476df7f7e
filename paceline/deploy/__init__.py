"""Run a pick in a training loop, watch it and steer it."""
