"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples in every run, or a change fails for what it has nothing to do with. LCSPEC_EXPLORE=1 looks for new
# ones; what it finds becomes an @example.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("explore" if os.environ.get("LCSPEC_EXPLORE") else "same")
