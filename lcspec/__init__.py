"""lcspec: faster answers from the GGUF model you already have, with the same text."""

__version__ = "0.1.0"
