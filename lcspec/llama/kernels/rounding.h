// Rows of tokens rounded to blocks of 256 values, with the bits of the library's quantize_row_q8_K, which goes value by value.

#pragma once

#include <string.h>

#include "formats.h"

namespace {

// The value farthest from zero, of several the first one; its distance in all of `most`.
INLINE float farthest(const float *x, __m256 &most) {
    const auto distance = [&](int i) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(x + i)); };
    most = distance(0);
    for (int i = 8; i < 256; i += 8) most = _mm256_max_ps(most, distance(i));
    most = _mm256_max_ps(most, _mm256_permute2f128_ps(most, most, 1));
    most = _mm256_max_ps(most, _mm256_permute_ps(most, 0x4e));
    most = _mm256_max_ps(most, _mm256_permute_ps(most, 0xb1));
    for (int i = 0; i < 256; i += 8)
        if (const int there = _mm256_movemask_ps(_mm256_cmp_ps(distance(i), most, _CMP_EQ_OQ)))
            return x[i + __builtin_ctz(there)];
    return 0;
}

void round_to_q8_K(const float *x, Q8_K *to, int64_t k) {
    for (; k > 0; k -= 256, x += 256, to++) {
        __m256 most;
        const float extreme = farthest(x, most);
        if (extreme == 0) {
            to->d = 0;
            memset(to->q, 0, sizeof(to->q));
            continue;
        }
        const float scale = -127.0f / extreme;
        const auto eight = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_set1_ps(scale), _mm256_loadu_ps(x + i))); };
        for (int i = 0; i < 256; i += 32) {
            const __m256i first = _mm256_packs_epi32(eight(i), eight(i + 8)), last = _mm256_packs_epi32(eight(i + 16), eight(i + 24));
            const __m256i in_turn = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            const __m256i q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, last), in_turn);
            _mm256_storeu_si256((__m256i *)(to->q + i), q);
            const __m256i fours = add_byte_products(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
            const __m256i eights = _mm256_hadd_epi32(fours, fours), all = _mm256_hadd_epi32(eights, eights);
            to->sums[i / 16] = (int16_t)_mm256_extract_epi32(all, 0);
            to->sums[i / 16 + 1] = (int16_t)_mm256_extract_epi32(all, 4);
        }
        to->d = 1 / scale;
    }
}

}  // namespace
