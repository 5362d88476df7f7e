"""Watch a deployed run through its telemetry, and steer its period, delay and codec."""
