"""The only package that imports llama_cpp: model, context, batch, vocabulary, template, sampler."""

from lcspec.llama.batch import Batch
from lcspec.llama.context import Context
from lcspec.llama.lib import build, init, log_to_stderr, supports_gpu_offload, version
from lcspec.llama.model import Branching, Model, Traits, load_vocab
from lcspec.llama.sampler import Sampler
from lcspec.llama.vocab import Vocab, check_same_vocabulary

__all__ = [
    "Batch",
    "Branching",
    "Context",
    "Model",
    "Sampler",
    "Traits",
    "Vocab",
    "build",
    "check_same_vocabulary",
    "init",
    "load_vocab",
    "log_to_stderr",
    "supports_gpu_offload",
    "version",
]
