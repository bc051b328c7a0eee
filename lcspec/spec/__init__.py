"""Token trees, their shapes, and the verifiers: numpy only."""
