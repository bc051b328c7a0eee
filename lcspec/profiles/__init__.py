"""What was measured on this machine, and where it is kept."""
