"""The only package that imports llama_cpp: model, context, batch, sequences, vocabulary, template, sampler."""

from lcspec.llama.batch import Batch
from lcspec.llama.checkpoints import Checkpoints
from lcspec.llama.context import Context
from lcspec.llama.devices import offloads
from lcspec.llama.lib import build, init, log_to_stderr, version
from lcspec.llama.model import Branching, Model, Traits, load_vocab
from lcspec.llama.sampler import Sampler
from lcspec.llama.sequences import SequencePool, SlotCache
from lcspec.llama.shelf import CacheShelf, common_prefix
from lcspec.llama.vocab import Vocab, check_same_vocabulary

__all__ = [
    "Batch",
    "Branching",
    "CacheShelf",
    "Checkpoints",
    "Context",
    "Model",
    "Sampler",
    "SequencePool",
    "SlotCache",
    "Traits",
    "Vocab",
    "build",
    "check_same_vocabulary",
    "common_prefix",
    "init",
    "load_vocab",
    "log_to_stderr",
    "offloads",
    "version",
]
