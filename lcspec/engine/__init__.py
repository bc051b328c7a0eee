"""The engine: it decides what runs in a step, runs it, and processes the output."""
