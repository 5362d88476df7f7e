"""Settings that are each possible and together are not."""
