/* For compiling llama.cpp with GCC: its _tile_loadconfig tells the compiler that 8 of the configuration's 64 bytes are
 * read (GCC 12 and others), so the stores to the rest are dropped, and AMX code crashes or computes nonsense on CPUs that
 * have it (llama.cpp issue 20824). `make setup` includes this file before every C++ source. A library built with it
 * exports lcspec_tile_config; lcspec leaves the AMX code of any other library alone. */
#if defined(__cplusplus) && defined(__GNUC__) && defined(__x86_64__) && defined(__AMX_TILE__)
#include <immintrin.h>

struct lcspec_tile_bytes {
    char all[64];
};

static inline __attribute__((always_inline)) void lcspec_tile_loadconfig(const void * config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*static_cast<const lcspec_tile_bytes *>(config)));
}

#undef _tile_loadconfig
#define _tile_loadconfig(config) lcspec_tile_loadconfig(config)

extern "C" {
__attribute__((weak, used, visibility("default"))) extern const int lcspec_tile_config = 1;
}
#endif
