"""GGUF files before, and without, llama.cpp: finding them, reading and checking them, will it fit, writing new ones."""
