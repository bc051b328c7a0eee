// Eight columns of weights at a time, eight values of each: one vector of 512 bits, else two of 256.
//
// A lane sums for one column alone, so that eight columns need one or two multiplications by their scales where weights as
// they are stored need eight. GROUPS of eight columns are multiplied together, and FROM_MANY rows and more as many.

#pragma once

#include "formats.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define WIDE  // and so VNNI
#endif

namespace {

constexpr int NEVER = INT32_MAX;
#ifdef VNNI
constexpr int IN_A_LANE = 4;  // products of bytes
#else
constexpr int IN_A_LANE = 2;
#endif

INLINE __m128i sixteen(const int8_t *first, const int8_t *last) {
    return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)first), _mm_loadl_epi64((const __m128i *)last));
}
// Of each lane of 128 bits two columns: a byte of the first eight, then of the last, as 16 bits twice for each.
#define COLUMNS_AT(a) -1, a, -1, a, -1, a + 1, -1, a + 1, -1, a + 8, -1, a + 8, -1, a + 9, -1, a + 9
alignas(64) constexpr int8_t FOUR_OF_TWO[64] = {COLUMNS_AT(0), COLUMNS_AT(2), COLUMNS_AT(4), COLUMNS_AT(6)};
#undef COLUMNS_AT

}  // namespace

#ifdef WIDE
#include "columns_512.h"
#else
#include "columns_256.h"
#endif
