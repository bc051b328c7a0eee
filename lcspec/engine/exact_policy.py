"""What an engine must do so that a request's text is the same to the bit, whatever runs beside it."""

from __future__ import annotations

from lcspec.config import ModelOptions
from lcspec.engine.request import Request
from lcspec.kv_cache.reuse import Reuse
from lcspec.profiles.exactness import Certificate


class ExactPolicy:
    """The rules that follow from a context's certificate.

    Attributes:
        certificate: which widths give the same bits. Where a row depends on the rest of the batch, it is made for the
            first exact request, and is None until then.
        independent: a row depends only on its own text, so every request is exact.
        all_exact: every request is treated as exact, as far as its verifier allows.
        needs_own_context: exact requests need a context of their own (see lcspec.engine.solo).
        chains_only: a row depends on where the cells of its text lie, which must be in text order from the first on.
    """

    def __init__(self, options: ModelOptions, certificate: Certificate | None, scattered: bool = False) -> None:
        """`certificate`: of an independent context, None for any other; `scattered`: where a text's cells lie depends
        on its drafts.
        """
        self.certificate = certificate
        self.independent = certificate is not None
        self.all_exact = self.independent or bool(options.exact)
        self.chains_only = certificate is not None and not certificate.trees
        shared = options.slots > 1 or options.attention == "products" or scattered
        self.needs_own_context = not self.independent and shared

    def strict(self, request: Request) -> bool:
        """Whether a request needs widths, prompt blocks and cells of its own to be exact (see ScratchPad)."""
        return request.speculation.exact and not self.independent

    def reuse(self, request: Request, apart: bool) -> Reuse:
        """Which cells of earlier requests a request may reuse; `apart`: its prompt is read in a context of its own."""
        if self.independent:
            return Reuse.READ_APART if apart else Reuse.IN_PLACE
        return Reuse.BLOCKS if request.speculation.exact else Reuse.ANY

    def is_canonical(self, request: Request, prefilling: bool) -> bool:
        """Whether a later exact request may reuse this step's cells: those of prompt blocks, and those of answers if
        they have the same bits."""
        exact = self.certificate if self.strict(request) else None
        return exact is not None and (prefilling or exact.prompt_in_class)
