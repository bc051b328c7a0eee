"""The KV cache: which cells hold one text, which ones several texts share, and states to go back to."""
