"""What touches tensors and devices: workers, checks, timing, traffic, compile reports, telemetry."""
