"""The engine: what runs, in which step, and what comes of it."""
