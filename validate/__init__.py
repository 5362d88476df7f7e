"""Real training on torch.distributed, calibration and comparison (imports torch, never simpy)."""
