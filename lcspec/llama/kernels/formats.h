// ggml's blocks of weights and of rounded rows (ggml-common.h), and what all kernels need.

#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define METHOD inline __attribute__((always_inline))

namespace {

constexpr int ROWS = 8;          // that share what was unpacked
constexpr int BLOCKS = 1024;     // of 32 values that a row may have
constexpr int64_t COLUMNS = 64;  // rows of weights that stay in the processor's cache for all rows

using half = uint16_t;
struct Q4_0 { half d; uint8_t q[16]; };
struct Q4_1 { half d, m; uint8_t q[16]; };
struct Q5_0 { half d; uint8_t h[4], q[16]; };
struct Q5_1 { half d, m; uint8_t h[4], q[16]; };
struct Q8_0 { half d; int8_t q[32]; };
struct IQ4_NL { half d; uint8_t q[16]; };
struct MXFP4 { uint8_t exponent, q[16]; };
struct Q8_1 { half d, s; int8_t q[32]; };
struct Q2_K { uint8_t scales[16], q[64]; half d, m; };
struct Q3_K { uint8_t h[32], q[64], scales[12]; half d; };
struct IQ4_XS { half d; uint16_t high; uint8_t low[4], q[128]; };
struct Q4_K { half d, m; uint8_t scales[12], q[128]; };
struct Q5_K { half d, m; uint8_t scales[12], h[32], q[128]; };
struct Q6_K { uint8_t q[128], h[64]; int8_t scales[16]; half d; };
struct Q8_K { float d; int8_t q[256]; int16_t sums[16]; };

// Several rows are so much work that the processor alone does not read on far enough. It is read to the second cache: few lines
// can be on their way to the first one (NEAR) at a time, and two rows of Q8_0 took twice as long as one. What a single row reads
// ONCE leaves in the caches what is used again: the next steps' Python, too.
constexpr int NEAR = 3, SECOND = 2, ONCE = 0;
template <int CACHE = SECOND> INLINE void read_ahead(const void *from, int64_t size) {
    for (int64_t b = 0; b < size; b += 64) __builtin_prefetch((const char *)from + b, 0, CACHE);
}

INLINE float value(half h) { return _cvtsh_ss(h); }
INLINE __m256i load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE __m128i load_half(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

INLINE uint64_t eight_bytes(const void *from) {
    uint64_t eight;
    __builtin_memcpy(&eight, from, 8);
    return eight;
}

INLINE float sum_of(__m128 x) {
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
INLINE float sum_of(__m256 x) { return sum_of(_mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x))); }
INLINE int sum_of(__m256i x) {
    __m128i four = _mm_add_epi32(_mm256_extracti128_si256(x, 1), _mm256_castsi256_si128(x));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

// The 32 halves of 16 bytes, the lower ones first.
INLINE __m256i nibbles(const uint8_t *q) {
    const __m256i both = _mm256_broadcastsi128_si256(load_half(q));
    return _mm256_and_si256(_mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
}

// The fifth bit of 32 values.
INLINE __m256i bits(const uint8_t *h) {
    int four;
    __builtin_memcpy(&four, h, 4);
    const __m256i fifth = _mm256_set1_epi8(16);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return _mm256_maskz_mov_epi8((__mmask32)four, fifth);
#else
    const __m256i own = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, own), own), fifth);
#endif
}

// What these halves stand for in IQ4_NL and IQ4_XS, and in MXFP4.
INLINE __m128i levels_of_iq4() {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}
INLINE __m128i levels_of_mxfp4() { return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }
INLINE __m256i looked_up(__m128i levels, const uint8_t *q) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), nibbles(q));
}

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__)
#define VNNI
#endif

// Eight sums of four products each, added to `sum`: bytes without a sign times bytes with one.
INLINE __m256i add_byte_products(__m256i sum, __m256i u, __m256i s) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sum, u, s);
#elif defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, u, s);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
#endif
}
// The same of two products of 16 bits each.
INLINE __m256i add_products(__m256i sum, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpwssd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
}

// The scale of a block of weights times that of a row's block; a single row's in fewer instructions.
template <int N> METHOD __m256 scale(float weights, const float *row) {
    if (N == 1) return _mm256_set1_ps(weights * row[0]);
    return _mm256_mul_ps(_mm256_set1_ps(weights), _mm256_broadcast_ss(row));
}

// Memory of a thread's own: more than fits on the stacks that some C libraries give to threads.
template <class T> T &own() {
    static thread_local T memory;
    return memory;
}

// Some rows of weights, and at most ROWS rows.
struct Part {
    const char *weights;
    int64_t from, to, pitch, blocks;
    const char *rows[ROWS];
    float *out[ROWS];
};

}  // namespace
