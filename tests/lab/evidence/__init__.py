"""What the law of learning curves is fitted to."""
