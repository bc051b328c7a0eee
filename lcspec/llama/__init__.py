"""The only package that imports llama_cpp: model, context, batch, vocabulary, template, sampler.

The library is loaded when something of it is first asked for: a server only renders templates, and leaves the rest to a
process of its own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lcspec.llama.batch import Batch
    from lcspec.llama.context import Context
    from lcspec.llama.devices import drafts_apart, offloads
    from lcspec.llama.lib import build, end_on_abort, init, log_to_stderr, version
    from lcspec.llama.model import Branching, Model, Traits, load_vocab
    from lcspec.llama.row_by_row import can_fuse_row_by_row, can_go_row_by_row, functions_switched
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
    "can_fuse_row_by_row",
    "can_go_row_by_row",
    "check_same_vocabulary",
    "drafts_apart",
    "end_on_abort",
    "functions_switched",
    "init",
    "load_vocab",
    "log_to_stderr",
    "offloads",
    "version",
]
_MODULES = {
    "batch": ("Batch",),
    "context": ("Context",),
    "devices": ("drafts_apart", "offloads"),
    "lib": ("build", "end_on_abort", "init", "log_to_stderr", "version"),
    "model": ("Branching", "Model", "Traits", "load_vocab"),
    "sampler": ("Sampler",),
    "row_by_row": ("can_fuse_row_by_row", "can_go_row_by_row", "functions_switched"),
    "vocab": ("Vocab", "check_same_vocabulary"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """What `__all__` names, from the module that has it."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = found
    return found
