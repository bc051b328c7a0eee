"""All errors that users can meet. Each message says what is wrong and what to do about it."""

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


class LibraryError(LcspecError):
    """llama-cpp-python is not installed, or was built for another machine; `why`: what Python said, in a line."""

    def __init__(self, cause: BaseException) -> None:
        self.why = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        super().__init__(f"llama-cpp-python cannot be loaded ({self.why}); `lcspec doctor` says what to do")


class ModelClosed(LcspecError):
    """The model was unloaded, or its engine stopped, while a caller still needed it."""


class VocabularyMismatch(LcspecError):
    """A draft model's vocabulary differs from the target's."""


class TokenizeError(LcspecError):
    """The text cannot be expressed in the model's vocabulary."""


class TemplateError(LcspecError):
    """The model's chat template is missing something or refused the messages."""


class ContextOverflow(LcspecError):
    """The prompt does not fit the context."""

    @classmethod
    def of_prompt(cls, tokens: int, n_ctx: int) -> ContextOverflow:
        """A prompt of at least so many tokens.

        Clients look for words in this message, and then shorten the conversation: Claude Code for "prompt is too long"
        and both numbers, Continue and others for "maximum context length".
        """
        return cls(
            f"the prompt is too long: {tokens} tokens > {n_ctx - 1} (the maximum context length is {n_ctx}): "
            "shorten the prompt or raise --ctx"
        )


class GrammarError(UsageError):
    """The grammar or JSON schema cannot be compiled."""


class GrammarFailed(GrammarError):
    """A text cannot continue under its grammar: the mask takes too long, or no token fits. It ends only that
    request."""


class SamplingError(UsageError):
    """A sampling parameter is out of range."""


class DecodeError(LcspecError):
    """`llama_decode` failed; the request is lost, the engine continues."""


class ExactnessError(LcspecError):
    """Identical output was asked for (`--exact`) and cannot be certified for this model."""


class UnsupportedModel(LcspecError):
    """The model's memory or shape does not allow what was requested."""


class DownloadError(LcspecError):
    """A model could not be downloaded: no network, no such name, or not what was expected."""


class WorkerLost(DecodeError):
    """A worker with part of the model is lost; the model must be loaded again."""


class EngineDied(LcspecError):
    """The engine's process died more than once while it worked on this request."""
