"""An EAGLE-3 head trained on millions of tokens: the model computed by PyTorch, which needs a GPU and nothing else."""
