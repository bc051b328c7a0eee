// Weights in blocks of 32 values.

#pragma once

#include "formats.h"

namespace {

// The values of a block without a sign: larger by `above` than they are.
template <class W> constexpr int above = 0;
template <> constexpr int above<Q4_0> = 8;
template <> constexpr int above<Q5_0> = 16;
template <> constexpr int above<Q8_0> = 128;
template <> constexpr int above<IQ4_NL> = 128;
template <> constexpr int above<MXFP4> = 12;
INLINE __m256i unpack(const Q4_0 &b) { return nibbles(b.q); }
INLINE __m256i unpack(const Q4_1 &b) { return nibbles(b.q); }
INLINE __m256i unpack(const Q5_0 &b) { return _mm256_or_si256(nibbles(b.q), bits(b.h)); }
INLINE __m256i unpack(const Q5_1 &b) { return _mm256_or_si256(nibbles(b.q), bits(b.h)); }
INLINE __m256i unpack(const Q8_0 &b) { return _mm256_xor_si256(load(b.q), _mm256_set1_epi8((char)128)); }
INLINE __m256i unpack(const IQ4_NL &b) {
    return looked_up(_mm_add_epi8(levels_of_iq4(), _mm_set1_epi8((char)128)), b.q);
}
INLINE __m256i unpack(const MXFP4 &b) { return looked_up(_mm_add_epi8(levels_of_mxfp4(), _mm_set1_epi8(12)), b.q); }
// The same with a sign.
template <class W> METHOD __m256i with_sign(const W &b) {
    return _mm256_sub_epi8(unpack(b), _mm256_set1_epi8((char)above<W>));
}
template <> METHOD __m256i with_sign(const Q8_0 &b) { return load(b.q); }

// Their scale, where a shuffle would take longer than the two bytes that follow it.
template <class W> METHOD float scale_of(const W &b) {
    int four;
    __builtin_memcpy(&four, &b, 4);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(four)));
}
// Half of two to the power of the exponent, whose zero is 127; what is too small for a float is one without exponent.
template <> METHOD float scale_of(const MXFP4 &b) {
    const uint32_t bits = b.exponent < 2 ? 0x00200000u << b.exponent : (b.exponent - 1u) << 23;
    float scale;
    __builtin_memcpy(&scale, &bits, 4);
    return scale;
}

// What the values of a row are rounded to for these weights. Those with a minimum have Q8_1, and no signs.
template <class W> struct Rounded { using type = Q8_0; static constexpr bool minimum = false; };
template <> struct Rounded<Q4_1> { using type = Q8_1; static constexpr bool minimum = true; };
template <> struct Rounded<Q5_1> { using type = Q8_1; static constexpr bool minimum = true; };

INLINE float minimum(const Q4_1 &b) { return value(b.m); }
INLINE float minimum(const Q5_1 &b) { return value(b.m); }
template <class W> METHOD float minimum(const W &) { return 0; }

// The dot products of these sum every other block apart, and one that is left over after that.
template <class W> constexpr int chains = 1;
template <> constexpr int chains<IQ4_NL> = 2;
template <> constexpr int chains<MXFP4> = 2;

// How bytes of which one must not have a sign are multiplied. `ahead`: rows bring along what the products of weights
// larger by `above` are too large by. `later`: it is computed from the weights, for values larger by 128; many rows
// would bring too much for the processor's cache. `signs`: those of the weights go to the values, as without VNNI
// sums of two products are kept in 16 bits, which is not enough for the largest weights.
enum class Way { plain, ahead, later, signs };
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int MOST = 128;
#else
constexpr int MOST = 63;
#endif
template <class W> constexpr int most_ahead = 4;
template <> constexpr int most_ahead<Q8_0> = 2;  // which have signs as they are stored
template <class W, int N> constexpr Way way = above<W> == 0    ? Way::plain
                                            : above<W> > MOST ? Way::signs
                                            : N <= most_ahead<W> ? Way::ahead
                                                                 : Way::later;

// Rows side by side, block after block: their values, their scales and sums in 32 bits, and what they bring along.
struct Small { __m256i q[BLOCKS * ROWS], start[BLOCKS * 4]; float d[BLOCKS * ROWS], s[BLOCKS * ROWS + ROWS]; };

// Zero less the products of bytes with a sign and `u` without one.
INLINE __m256i less_products(int u, __m256i s) {
    const __m256i none = _mm256_setzero_si256();
    return _mm256_sub_epi32(none, add_byte_products(none, _mm256_set1_epi8((char)u), s));
}

template <class W, int N> METHOD void read_rows(Small &to, const char *const *rows, int64_t blocks) {
    using V = typename Rounded<W>::type;
    const __m256i larger = _mm256_set1_epi8(way<W, N> == Way::later ? (char)128 : 0);
    for (int r = 0; r < N; r++)
        for (int64_t i = 0, at = r; i < blocks; i++, at += N) {
            const V &block = ((const V *)rows[r])[i];
            to.q[at] = _mm256_xor_si256(load(block.q), larger);
            if (way<W, N> == Way::ahead) to.start[at] = less_products(above<W>, load(block.q));
            to.d[at] = value(block.d);
            if (Rounded<W>::minimum) to.s[at] = value(((const half *)&block)[1]);
        }
    _mm256_storeu_ps(to.s + blocks * N, _mm256_setzero_ps());
}

// The products of a block: eight sums of four for each row.
template <class W, int N> METHOD void multiply_block(const W &w, const Small &rows, int64_t at, __m256i *products) {
    const __m256i none = _mm256_setzero_si256(), *v = rows.q + at * N, *ahead = rows.start + at * N;
    const __m256i q = unpack(w), s = with_sign(w), size = _mm256_sign_epi8(s, s), later = less_products(128, s);
    for (int r = 0; r < N; r++) switch (way<W, N>) {
        case Way::plain: products[r] = add_byte_products(none, q, v[r]); break;
        case Way::ahead: products[r] = add_byte_products(ahead[r], q, v[r]); break;
        case Way::later: products[r] = add_byte_products(later, v[r], s); break;
        case Way::signs: products[r] = add_byte_products(none, size, _mm256_sign_epi8(v[r], s));
    }
}

template <class W, int N, int M>
METHOD void multiply_blocks(const W *const *w, int64_t blocks, const Small &rows, float *const *to, int64_t column,
                            int64_t each) {
    __m256 sums[chains<W>][M][N], rest[M];
    __m256i products[N];
    for (int m = 0; m < M; m++) {
        rest[m] = _mm256_setzero_ps();
        for (int c = 0; c < chains<W>; c++)
            for (int r = 0; r < N; r++) sums[c][m][r] = _mm256_setzero_ps();
    }
    int64_t i = 0;
    for (; i + chains<W> <= blocks; i += chains<W>)
        for (int64_t c = 0, at = i; c < chains<W>; c++, at++)
            for (int m = 0; m < M; m++) {
                const W &block = w[m][at];
                multiply_block<W, N>(block, rows, at, products);
                const float d = scale_of(block), *d_of_rows = rows.d + at * N;
                if (Rounded<W>::minimum)
                    rest[m] = _mm256_fmadd_ps(_mm256_set1_ps(minimum(block)), _mm256_loadu_ps(rows.s + at * N), rest[m]);
                for (int r = 0; r < N; r++) {
                    const __m256 four = _mm256_cvtepi32_ps(products[r]);
                    sums[c][m][r] = _mm256_fmadd_ps(scale<N>(d, d_of_rows + r), four, sums[c][m][r]);
                }
            }
    for (int m = 0; m < M; m++, column += each) {
        float more[ROWS];
        _mm256_storeu_ps(more, rest[m]);
        for (int r = 0; r < N; r++) {
            __m256 all = sums[0][m][r];
            for (int c = 1; c < chains<W>; c++) all = _mm256_add_ps(all, sums[c][m][r]);
            to[r][column] = Rounded<W>::minimum ? sum_of(all) + more[r] : sum_of(all);
        }
        if (chains<W> == 1 || i == blocks) continue;
        multiply_block<W, N>(w[m][i], rows, i, products);
        for (int r = 0; r < N; r++)
            to[r][column] += rows.d[i * N + r] * scale_of(w[m][i]) * (float)sum_of(products[r]);
    }
}

}  // namespace
