"""Strategies side by side on the same prompts: `lcspec bench`."""
