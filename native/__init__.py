"""C++ for compiling llama.cpp with: `lcspec doctor` names it in the line that builds the library."""
