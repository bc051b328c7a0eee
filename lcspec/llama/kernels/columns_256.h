// Columns of weights (columns.h) with AVX2, and with VNNI beside it.

#pragma once

#include "formats.h"

namespace {

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

INLINE __m256i eight_values(const int8_t *x) { return _mm256_set1_epi64x((long long)eight_bytes(x)); }
INLINE Whole by_column(const Columns *sums) {
    return _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(sums->first, sums->last),
                                       _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
}

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

#ifdef VNNI  // sums have 32 bits

template <int N, int M> METHOD void dot(const Columns (*u)[M], int from, const int8_t *x, Columns *sums) {
    *sums = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int t = 0; t < N; t++) {
        const __m256i values = eight_values(x + 8 * t);
        const Columns &w = u[0][from + t];
        *sums = {add_byte_products(sums->first, w.first, values), add_byte_products(sums->last, w.last, values)};
    }
}
constexpr int OF_SIGNED = 128;
template <int N, bool> METHOD Whole dots(const Columns (*u)[N], const int8_t *x) {
    Columns sum;
    dot<N>(u, 0, x, &sum);
    return by_column(&sum);
}

using Scale = Columns;
INLINE Scale scale_of(const int8_t *eight) {
    const __m128i scales = _mm_loadl_epi64((const __m128i *)eight), twice = _mm_unpacklo_epi8(scales, scales);
    return {_mm256_cvtepi8_epi32(twice), _mm256_cvtepi8_epi32(_mm_srli_si128(twice, 8))};
}
INLINE Columns add_scaled(Columns all, Columns sum, const Scale &scale) {
    return {_mm256_add_epi32(all.first, _mm256_mullo_epi32(sum.first, scale.first)),
            _mm256_add_epi32(all.last, _mm256_mullo_epi32(sum.last, scale.last))};
}
using TwoScales = Columns;
INLINE TwoScales two_scales_of(const int8_t *first, const int8_t *last) {
    const __m256i bytes = _mm256_broadcastsi128_si256(sixteen(first, last));
    return {_mm256_srai_epi16(_mm256_shuffle_epi8(bytes, load(FOUR_OF_TWO)), 8),
            _mm256_srai_epi16(_mm256_shuffle_epi8(bytes, load(FOUR_OF_TWO + 32)), 8)};
}
INLINE Columns add_scaled(Columns all, Columns first, Columns last, const TwoScales &scales) {
    return {add_products(all.first, _mm256_packs_epi32(first.first, last.first), scales.first),
            add_products(all.last, _mm256_packs_epi32(first.last, last.last), scales.last)};
}
INLINE Whole by_column_of_two(const Columns *sums) {
    const __m256i both = _mm256_add_epi32(_mm256_unpacklo_epi64(sums->first, sums->last),
                                          _mm256_unpackhi_epi64(sums->first, sums->last));
    return _mm256_permute4x64_epi64(both, 0xd8);
}

#else  // they have 16 until they are multiplied

template <int N, int M> METHOD void dot(const Columns (*u)[M], int from, const int8_t *x, Columns *sums) {
    for (int t = 0; t < N; t++) {
        const __m256i values = eight_values(x + 8 * t);
        const Columns &w = u[0][from + t];
        const Columns products = {_mm256_maddubs_epi16(w.first, values), _mm256_maddubs_epi16(w.last, values)};
        *sums = t ? Columns{_mm256_add_epi16(sums->first, products.first), _mm256_add_epi16(sums->last, products.last)} : products;
    }
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
INLINE TwoScales two_scales_of(const int8_t *first, const int8_t *last) { return {scale_of(first), scale_of(last)}; }
INLINE Columns add_scaled(Columns all, Columns first, Columns last, const TwoScales &scales) {
    return add_scaled(add_scaled(all, first, scales.first), last, scales.last);
}
INLINE Whole by_column_of_two(const Columns *sums) { return by_column(sums); }

#endif

}  // namespace
