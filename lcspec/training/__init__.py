"""Training Medusa heads."""
