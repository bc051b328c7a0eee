# llama-cpp-python builds llama.cpp's common library, too, which lcspec does not use and nothing else installs for it.
# CMake reads a plain variable before the cache entry that llama-cpp-python sets (policy CMP0126).
set(LLAMA_BUILD_COMMON OFF)
