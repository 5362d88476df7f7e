"""What is thrown at Paceline, and how much of it is handled: `python -m tests.reliability`."""
