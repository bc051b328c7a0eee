# llama-cpp-python asks for llama.cpp's common library, too. lcspec does not use it, and it takes a third of the time
# that compiling takes. A plain variable is what CMake reads before the cache entry of this name (policy CMP0126).
set(LLAMA_BUILD_COMMON OFF)
