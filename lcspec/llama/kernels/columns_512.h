// Columns of weights (columns.h) with VNNI and 512 bits: two groups of eight, which are read from places of memory that are apart.

#pragma once

#include "formats.h"

namespace {

constexpr int GROUPS = 2, FROM_MANY = 16;
using Columns = __m512i;
using Whole = __m512i;  // one number, or two of 16 bits, for each column of all groups
using Floats = __m512;

INLINE Columns some_bytes(int b) { return _mm512_set1_epi8((char)b); }
INLINE Columns read(const void *p) { return _mm512_loadu_si512(p); }
INLINE Columns read_halves(const void *first, const void *last) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load(first)), load(last), 1);
}
INLINE Columns flipped(Columns a, int bits) { return _mm512_xor_si512(a, some_bytes(bits)); }
INLINE Columns low_halves(Columns a) { return _mm512_and_si512(a, some_bytes(15)); }
INLINE Columns high_halves(Columns a) { return low_halves(_mm512_srli_epi16(a, 4)); }
// `a` with those bits of `top` that are in `mask` when they are moved `left` within their byte (rightwards if negative).
INLINE Columns with_top(Columns a, Columns top, int left, int mask) {
    return _mm512_or_si512(a, _mm512_and_si512(_mm512_rolv_epi32(top, _mm512_set1_epi32(left)), some_bytes(mask)));
}
// `a` with a fifth bit, of which there are eight bytes.
INLINE Columns with_fifth(Columns a, const uint8_t *bits) {
    return _mm512_mask_add_epi8(a, eight_bytes(bits), a, some_bytes(16));
}
INLINE Columns looked_up(__m128i levels, Columns a) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), a); }

// Products of `N` vectors of bytes without a sign, from `u[group][from]` on, and so many times eight values of a row, added
// up in each lane: `sums[group]`.
template <int N, int M> METHOD void dot(const Columns (*u)[M], int from, const int8_t *x, Columns *sums) {
    for (int g = 0; g < GROUPS; g++) sums[g] = _mm512_setzero_si512();
    for (int t = 0; t < N; t++) {
        const __m512i values = _mm512_set1_epi64((long long)eight_bytes(x + 8 * t));
        for (int g = 0; g < GROUPS; g++) sums[g] = _mm512_dpbusd_epi32(sums[g], u[g][from + t], values);
    }
}
// Lanes of 32 bits, two for each column of both groups, one after the other: the first ones, and the second ones.
struct Lanes { __m512i first, second; };
INLINE Lanes lanes_of(const Columns &one, const Columns &other) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    return {_mm512_permutex2var_epi32(one, even, other), _mm512_permutex2var_epi32(one, odd, other)};
}
INLINE Whole by_column(const Columns *sums) {
    const Lanes lanes = lanes_of(sums[0], sums[1]);
    return _mm512_add_epi32(lanes.first, lanes.second);
}
// Bytes with a sign are made so much larger, or (0) taken as they are.
constexpr int OF_SIGNED = 128;
template <int N, bool SIGNED> METHOD Whole dots(const Columns (*u)[N], const int8_t *x) {
    Columns sums[GROUPS];
    dot<N>(u, 0, x, sums);
    return by_column(sums);
}

// Scales of eight columns, and sums multiplied by them.
struct Scale { __m512i twice; };
INLINE Scale scale_of(const int8_t *eight) {
    const __m128i scales = _mm_loadl_epi64((const __m128i *)eight);
    return {_mm512_cvtepi8_epi32(_mm_unpacklo_epi8(scales, scales))};
}
INLINE Columns add_scaled(Columns all, Columns sum, const Scale &scale) {
    return _mm512_add_epi32(all, _mm512_mullo_epi32(sum, scale.twice));
}

// Scales for two sums that have room in 16 bits and eight columns each, both added at once, and where columns are then.
struct TwoScales { __m512i both; };
INLINE TwoScales two_scales_of(const int8_t *first, const int8_t *last) {
    const __m512i bytes = _mm512_broadcast_i32x4(sixteen(first, last));
    return {_mm512_srai_epi16(_mm512_shuffle_epi8(bytes, _mm512_load_si512(FOUR_OF_TWO)), 8)};
}
INLINE Columns add_scaled(Columns all, Columns first, Columns last, const TwoScales &scales) {
    return _mm512_dpwssd_epi32(all, _mm512_packs_epi32(first, last), scales.both);
}
INLINE Whole by_column_of_two(const Columns *sums) {
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
    return _mm512_add_epi32(_mm512_permutex2var_epi64(sums[0], even, sums[1]),
                            _mm512_permutex2var_epi64(sums[0], odd, sums[1]));
}

INLINE Columns none() { return _mm512_setzero_si512(); }
INLINE Whole zero() { return _mm512_setzero_si512(); }
INLINE Whole pairs(const int8_t *of) { return _mm512_cvtepi8_epi16(load(of)); }
INLINE Whole add_pairs(Whole sum, Whole a, int b) { return _mm512_dpwssd_epi32(sum, a, _mm512_set1_epi32(b)); }
INLINE Whole plus(Whole a, int b) { return _mm512_add_epi32(a, _mm512_set1_epi32(b)); }
template <int TWICE> INLINE Whole minus_times(Whole a, Whole b) { return _mm512_sub_epi32(a, _mm512_slli_epi32(b, TWICE)); }

INLINE Floats no_floats() { return _mm512_setzero_ps(); }
INLINE Floats joined(const __m256 *groups) { return _mm512_insertf32x8(_mm512_castps256_ps512(groups[0]), groups[1], 1); }
INLINE Floats times(Floats a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
INLINE Floats minus(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
INLINE Floats add_product(Floats sum, Whole a, Floats b) { return _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), b, sum); }
INLINE Floats add_product(Floats sum, Floats a, float b) { return _mm512_fmadd_ps(a, _mm512_set1_ps(b), sum); }

}  // namespace
