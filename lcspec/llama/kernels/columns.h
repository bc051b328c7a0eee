// Eight columns of weights at a time, eight values of each: one vector with VNNI and 512 bits, else two with AVX2.
//
// A lane sums for one column alone, so that eight columns need one or two multiplications by their scales where weights as
// they are stored need eight. With 512 bits there are two such groups of columns, which are read from places of memory that
// are apart, and sums have 32 bits; with AVX2 they have 16 until they are multiplied.

#pragma once

#include "formats.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define WIDE
#endif

namespace {

constexpr int NEVER = INT32_MAX;
#ifdef WIDE

constexpr int GROUPS = 2, FROM_MANY = 16;  // FROM_MANY: rows are multiplied as many
using Columns = __m512i;
using Whole = __m512i;  // one number, or two of 16 bits, for each column of all groups
using Floats = __m512;

INLINE Columns bytes(int b) { return _mm512_set1_epi8((char)b); }
INLINE Columns read(const void *p) { return _mm512_loadu_si512(p); }
INLINE Columns read_halves(const void *first, const void *last) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load(first)), load(last), 1);
}
INLINE Columns flipped(Columns a, int bits) { return _mm512_xor_si512(a, bytes(bits)); }
INLINE Columns low_halves(Columns a) { return _mm512_and_si512(a, bytes(15)); }
INLINE Columns high_halves(Columns a) { return low_halves(_mm512_srli_epi16(a, 4)); }
// `a` with those bits of `top` that are in `mask` when they are moved `left` within their byte (rightwards if negative).
INLINE Columns with_top(Columns a, Columns top, int left, int mask) {
    return _mm512_or_si512(a, _mm512_and_si512(_mm512_rolv_epi32(top, _mm512_set1_epi32(left)), bytes(mask)));
}
// `a` with a fifth bit, of which there are eight bytes.
INLINE Columns with_fifth(Columns a, const uint8_t *bits) {
    unsigned long long all;
    __builtin_memcpy(&all, bits, 8);
    return _mm512_mask_add_epi8(a, all, a, bytes(16));
}
INLINE Columns looked_up(__m128i levels, Columns a) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), a); }

// Products of `N` vectors of bytes without a sign, from `u[group][from]` on, and so many times eight values of a row, added
// up in each lane: `sums[group]`.
template <int N, int M> METHOD void dot(const Columns (*u)[M], int from, const int8_t *x, Columns *sums) {
    for (int g = 0; g < GROUPS; g++) sums[g] = _mm512_setzero_si512();
    for (int t = 0; t < N; t++) {
        long long eight;
        __builtin_memcpy(&eight, x + 8 * t, 8);
        const __m512i values = _mm512_set1_epi64(eight);
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
// Bytes with a sign are made so much larger, and with AVX2 taken as they are.
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

// Scales for two sums of 16 bits and eight columns each, both added at once, and where columns are then.
struct TwoScales { __m512i both; };
INLINE TwoScales two_scales_of(const int8_t *sixteen) {
    // A lane of 128 bits has two columns: 16 bits of scale twice for each, of the first sum and of the second.
#define COLUMNS_AT(a) a, -1, a, -1, a + 1, -1, a + 1, -1, a + 8, -1, a + 8, -1, a + 9, -1, a + 9, -1
    alignas(64) static const int8_t places[64] = {COLUMNS_AT(0), COLUMNS_AT(2), COLUMNS_AT(4), COLUMNS_AT(6)};
#undef COLUMNS_AT
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_half(sixteen)), _mm512_load_si512(places))};
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

#else

constexpr int GROUPS = 1, FROM_MANY = NEVER;
struct Columns { __m256i first, last; };
using Whole = __m256i;
using Floats = __m256;

INLINE __m256i some_bytes(int b) { return _mm256_set1_epi8((char)b); }
INLINE Columns read(const void *p) { return {load(p), load((const char *)p + 32)}; }
INLINE Columns read_halves(const void *first, const void *last) { return {load(first), load(last)}; }
INLINE Columns flipped(Columns a, int bits) {
    return {_mm256_xor_si256(a.first, some_bytes(bits)), _mm256_xor_si256(a.last, some_bytes(bits))};
}
INLINE Columns low_halves(Columns a) {
    return {_mm256_and_si256(a.first, some_bytes(15)), _mm256_and_si256(a.last, some_bytes(15))};
}
INLINE Columns high_halves(Columns a) { return low_halves({_mm256_srli_epi16(a.first, 4), _mm256_srli_epi16(a.last, 4)}); }
INLINE __m256i moved(__m256i a, int left, int mask) {
    const __m128i right = _mm_cvtsi32_si128(left < 0 ? -left : 0), leftwards = _mm_cvtsi32_si128(left < 0 ? 0 : left);
    return _mm256_and_si256(_mm256_srl_epi16(_mm256_sll_epi16(a, leftwards), right), some_bytes(mask));
}
INLINE Columns with_top(Columns a, Columns top, int left, int mask) {
    return {_mm256_or_si256(a.first, moved(top.first, left, mask)), _mm256_or_si256(a.last, moved(top.last, left, mask))};
}
INLINE Columns with_fifth(Columns a, const uint8_t *eight) {
    return {_mm256_or_si256(a.first, bits(eight)), _mm256_or_si256(a.last, bits(eight + 4))};
}
INLINE Columns looked_up(__m128i levels, Columns a) {
    const __m256i both = _mm256_broadcastsi128_si256(levels);
    return {_mm256_shuffle_epi8(both, a.first), _mm256_shuffle_epi8(both, a.last)};
}

INLINE __m256i eight_values(const int8_t *x) {
    long long eight;
    __builtin_memcpy(&eight, x, 8);
    return _mm256_set1_epi64x(eight);
}
template <int N, int M> METHOD void dot(const Columns (*u)[M], int from, const int8_t *x, Columns *sums) {
    for (int t = 0; t < N; t++) {
        const __m256i values = eight_values(x + 8 * t);
        const Columns &w = u[0][from + t];
        const Columns products = {_mm256_maddubs_epi16(w.first, values), _mm256_maddubs_epi16(w.last, values)};
        *sums = t ? Columns{_mm256_add_epi16(sums->first, products.first), _mm256_add_epi16(sums->last, products.last)} : products;
    }
}
INLINE Whole by_column(const Columns *sums) {
    return _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(sums->first, sums->last),
                                       _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
}
constexpr int OF_SIGNED = 0;
template <int N, bool SIGNED> METHOD Whole dots(const Columns (*u)[N], const int8_t *x) {
    Columns sum;
    if (SIGNED) {
        sum = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int t = 0; t < N; t++) {
            const __m256i values = eight_values(x + 8 * t), first = (*u)[t].first, last = (*u)[t].last;
            sum.first = add_byte_products(sum.first, _mm256_abs_epi8(first), _mm256_sign_epi8(values, first));
            sum.last = add_byte_products(sum.last, _mm256_abs_epi8(last), _mm256_sign_epi8(values, last));
        }
    } else {
        const __m256i one = _mm256_set1_epi16(1);
        dot<N>(u, 0, x, &sum);
        sum = {_mm256_madd_epi16(sum.first, one), _mm256_madd_epi16(sum.last, one)};
    }
    return by_column(&sum);
}

using Scale = Columns;
INLINE Scale scale_of(const int8_t *eight) {
    const __m256i scales = _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)eight)));
#define FOUR_TIMES(a) a, a + 1, a, a + 1, a, a + 1, a, a + 1
    return {_mm256_shuffle_epi8(scales, _mm256_setr_epi8(FOUR_TIMES(0), FOUR_TIMES(2), FOUR_TIMES(4), FOUR_TIMES(6))),
            _mm256_shuffle_epi8(scales, _mm256_setr_epi8(FOUR_TIMES(8), FOUR_TIMES(10), FOUR_TIMES(12), FOUR_TIMES(14)))};
#undef FOUR_TIMES
}
INLINE Columns add_scaled(Columns all, Columns sum, const Scale &scale) {
    return {_mm256_add_epi32(all.first, _mm256_madd_epi16(sum.first, scale.first)),
            _mm256_add_epi32(all.last, _mm256_madd_epi16(sum.last, scale.last))};
}

struct TwoScales { Scale first, last; };
INLINE TwoScales two_scales_of(const int8_t *sixteen) { return {scale_of(sixteen), scale_of(sixteen + 8)}; }
INLINE Columns add_scaled(Columns all, Columns first, Columns last, const TwoScales &scales) {
    return add_scaled(add_scaled(all, first, scales.first), last, scales.last);
}
INLINE Whole by_column_of_two(const Columns *sums) { return by_column(sums); }

INLINE Columns none() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INLINE Whole zero() { return _mm256_setzero_si256(); }
INLINE Whole pairs(const int8_t *of) { return _mm256_cvtepi8_epi16(load_half(of)); }
INLINE Whole add_pairs(Whole sum, Whole a, int b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, _mm256_set1_epi32(b))); }
INLINE Whole plus(Whole a, int b) { return _mm256_add_epi32(a, _mm256_set1_epi32(b)); }
template <int TWICE> INLINE Whole minus_times(Whole a, Whole b) { return _mm256_sub_epi32(a, _mm256_slli_epi32(b, TWICE)); }

INLINE Floats no_floats() { return _mm256_setzero_ps(); }
INLINE Floats joined(const __m256 *groups) { return *groups; }
INLINE Floats times(Floats a, float b) { return _mm256_mul_ps(a, _mm256_set1_ps(b)); }
INLINE Floats minus(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
INLINE Floats add_product(Floats sum, Whole a, Floats b) { return _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), b, sum); }
INLINE Floats add_product(Floats sum, Floats a, float b) { return _mm256_fmadd_ps(a, _mm256_set1_ps(b), sum); }

#endif

}  // namespace
