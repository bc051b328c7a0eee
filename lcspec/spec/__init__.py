"""Token trees, their shapes, and who accepts what of them: numpy only."""
