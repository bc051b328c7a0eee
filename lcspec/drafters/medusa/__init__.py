"""Medusa heads: small networks that predict several tokens ahead from the target's last hidden state.

Cai et al. 2024 (arXiv:2401.10774). `drafter` and `blockwise` are the drafters, `inference` runs the heads, `network` is
their arithmetic, `file` reads and writes them, and `target` reads the target's output matrix. lcspec.training makes
them.
"""
