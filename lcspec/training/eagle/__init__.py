"""Training EAGLE-3 heads."""
