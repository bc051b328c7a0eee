// Weights in blocks of 32 values.

#pragma once

#include "formats.h"

namespace {

// A byte for each of 32 bits: `set` or `clear`.
INLINE __m256i bits(const uint8_t *h, char set, char clear) {
    int four;
    __builtin_memcpy(&four, h, 4);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return _mm256_mask_blend_epi8((__mmask32)four, _mm256_set1_epi8(clear), _mm256_set1_epi8(set));
#else
    const __m256i own = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
    __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own), own);
    return _mm256_blendv_epi8(_mm256_set1_epi8(clear), _mm256_set1_epi8(set), is_set);
#endif
}
INLINE __m256i unpack(const Q4_0 &b) { return _mm256_sub_epi8(nibbles(b.q), _mm256_set1_epi8(8)); }
INLINE __m256i unpack(const Q4_1 &b) { return nibbles(b.q); }
INLINE __m256i unpack(const Q5_0 &b) { return _mm256_or_si256(nibbles(b.q), bits(b.h, 0, (char)0xf0)); }
INLINE __m256i unpack(const Q5_1 &b) { return _mm256_or_si256(nibbles(b.q), bits(b.h, 16, 0)); }
INLINE __m256i unpack(const Q8_0 &b) { return load(b.q); }

// What the values of a row are rounded to for these weights. Those with a minimum have Q8_1, and no signs.
template <class W> struct Rounded { using type = Q8_0; static constexpr bool minimum = false; };
template <> struct Rounded<Q4_1> { using type = Q8_1; static constexpr bool minimum = true; };
template <> struct Rounded<Q5_1> { using type = Q8_1; static constexpr bool minimum = true; };

INLINE float minimum(const Q4_1 &b) { return value(b.m); }
INLINE float minimum(const Q5_1 &b) { return value(b.m); }
template <class W> METHOD float minimum(const W &) { return 0; }

// Weights with a sign are multiplied by values without one, which are taken as 128 larger. Without VNNI sums of two
// products are kept in 16 bits, which is not enough for Q8_0.
template <class W> constexpr bool larger_by_128 = !Rounded<W>::minimum;
#if !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
template <> constexpr bool larger_by_128<Q8_0> = false;
#endif

// Rows side by side, block after block: their values, and their scales and sums in 32 bits.
struct Small { __m256i q[BLOCKS * ROWS]; float d[BLOCKS * ROWS], s[BLOCKS * ROWS + ROWS]; };

template <class W, int N> METHOD void read_rows(Small &to, const char *const *rows, int64_t blocks) {
    using V = typename Rounded<W>::type;
    const __m256i larger = _mm256_set1_epi8(larger_by_128<W> ? (char)128 : 0);
    for (int r = 0; r < N; r++)
        for (int64_t i = 0, at = r; i < blocks; i++, at += N) {
            const V &block = ((const V *)rows[r])[i];
            to.q[at] = _mm256_xor_si256(load(block.q), larger);
            to.d[at] = value(block.d);
            if (Rounded<W>::minimum) to.s[at] = value(((const half *)&block)[1]);
        }
    _mm256_storeu_ps(to.s + blocks * N, _mm256_setzero_ps());
}

template <class W, int N>
METHOD void multiply_blocks(const W *w, int64_t blocks, const Small &rows, float *const *to, int64_t column) {
    __m256 sums[N], rest = _mm256_setzero_ps();
    for (int r = 0; r < N; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        const __m256i q = unpack(w[i]), none = _mm256_setzero_si256();
        __m256i start = none, size = q;
        if (larger_by_128<W>) start = _mm256_sub_epi32(none, add_byte_products(none, _mm256_set1_epi8((char)128), q));
        else if (!Rounded<W>::minimum) size = _mm256_sign_epi8(q, q);
        const float d = value(w[i].d);
        if (Rounded<W>::minimum)
            rest = _mm256_fmadd_ps(_mm256_set1_ps(minimum(w[i])), _mm256_loadu_ps(rows.s + i * N), rest);
        for (int r = 0; r < N; r++) {
            const __m256i v = rows.q[i * N + r];
            const __m256i products = larger_by_128<W> ? add_byte_products(start, v, q)
                                     : Rounded<W>::minimum ? add_byte_products(none, q, v)
                                                           : add_byte_products(none, size, _mm256_sign_epi8(v, q));
            sums[r] = _mm256_fmadd_ps(scale<N>(d, rows.d + i * N + r), _mm256_cvtepi32_ps(products), sums[r]);
        }
    }
    float more[ROWS];
    _mm256_storeu_ps(more, rest);
    for (int r = 0; r < N; r++) to[r][column] = Rounded<W>::minimum ? sum_of(sums[r]) + more[r] : sum_of(sums[r]);
}

}  // namespace
