"""The terminal chat (`lcspec chat`), installed as lcspec.tui."""
