"""What an engine must do so that a request's text is the same to the bit, whoever runs beside it."""

from __future__ import annotations

from lcspec.config import ModelOptions
from lcspec.engine.request import Request
from lcspec.kv_cache.prefix_cache import Reuse
from lcspec.profiles.exactness import Certificate


class ExactPolicy:
    """The rules that follow from a context's certificate.

    Attributes:
        certificate: which widths agree. Where a row depends on the rest of a batch, it is made when an exact request
            first comes; None until then.
        independent: a row depends on nothing but its own text, so every request is exact, whoever runs beside it.
        all_exact: every request is exact, as far as its verifier lets it.
        needs_own_context: exact requests need a context of their own (see lcspec.engine.lanes).
    """

    def __init__(self, options: ModelOptions, certificate: Certificate | None) -> None:
        """`certificate`: of an independent context, None for any other."""
        self.certificate = certificate
        self.independent = certificate is not None
        self.all_exact = self.independent or bool(options.exact)
        self.needs_own_context = not self.independent and (options.slots > 1 or options.attention == "products")

    def strict(self, request: Request) -> bool:
        """Whether a request must keep to widths, blocks and cells of its own to be exact (see ScratchPad)."""
        return request.speculation.exact and not self.independent

    def reuse(self, request: Request, apart: bool) -> Reuse:
        """Which cells of earlier requests a request may go on from; `apart`: its prompt is read apart."""
        if self.independent:
            return Reuse.READ_APART if apart else Reuse.IN_PLACE
        return Reuse.BLOCKS if request.speculation.exact else Reuse.ANY

    def is_canonical(self, request: Request, prefilling: bool) -> bool:
        """Whether a later exact request may reuse the cells of this step: those of prompt blocks, and answers if they
        give the same bits."""
        exact = self.certificate if self.strict(request) else None
        return exact is not None and (prefilling or exact.prompt_in_class)
