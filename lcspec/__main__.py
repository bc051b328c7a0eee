"""`python -m lcspec` is the command line."""

from lcspec.cli import main

main()
