"""Medusa heads: small networks that guess several tokens ahead from the target's last hidden state.

Cai et al. 2024 (arXiv:2401.10774). One subject a file: `target` (which model), `prompts`, `collect` and `states` (the
target's own outputs and hidden states), `network` and `train`, `measure` (accuracies and the sparse tree), `file` and
`infer` (what the drafters load), `command` (`lcspec draft heads`).
"""
