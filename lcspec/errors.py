"""Every error a user can meet. Each message says what is wrong and what to do about it."""

from __future__ import annotations


class LcspecError(Exception):
    """Base of all expected errors: the command line prints the message on one line and exits with `exit_code`."""

    exit_code = 1


class UsageError(LcspecError):
    """The request itself is wrong (an unknown drafter, a negative count): exit code 2."""

    exit_code = 2


class ModelFileError(LcspecError):
    """The model file is missing, not a GGUF, truncated, or lacks what is needed to run it."""


class ModelLoadError(LcspecError):
    """The library could not load the model or create a context (memory, unknown architecture)."""


class ModelClosed(LcspecError):
    """The model was unloaded, or its engine has stopped, while somebody still wanted something of it."""


class VocabularyMismatch(LcspecError):
    """A draft model's vocabulary differs from the target's."""


class TokenizeError(LcspecError):
    """The text cannot be expressed in the model's vocabulary."""


class TemplateError(LcspecError):
    """The model's chat template is missing something or refused the messages."""


class ContextOverflow(LcspecError):
    """The prompt does not fit the context."""


class GrammarError(UsageError):
    """The grammar or JSON schema cannot be compiled."""


class GrammarFailed(GrammarError):
    """A text could not go on under its grammar: a mask over budget, or no token that fits. Ends that request alone."""


class SamplingError(UsageError):
    """A sampling parameter is out of range."""


class DecodeError(LcspecError):
    """`llama_decode` failed; the request is lost, the engine goes on."""


class ExactnessError(LcspecError):
    """Identical output was asked for (`--exact`) and cannot be certified for this model."""


class UnsupportedModel(LcspecError):
    """The model's memory or shape does not allow what was asked of it."""


class DownloadError(LcspecError):
    """A model could not be downloaded: no network, no such name, or not what was expected."""


class WorkerLost(DecodeError):
    """Another machine that computes a part of the model is gone; the model must be loaded again."""


class EngineDied(LcspecError):
    """The process that an engine ran in died more than once while it was at this."""
