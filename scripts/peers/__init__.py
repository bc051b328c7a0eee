"""Parts of scripts/compare_peers.py: llama.cpp's own speculative programs side by side with lcspec."""
