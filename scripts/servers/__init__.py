"""Measuring servers: starting them, putting load on them, reading what they answer."""
