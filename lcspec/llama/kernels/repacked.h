// Q4_0, as the library repacks it: blocks of eight columns, eight bytes of each in turn, and nibbles with a sign.

#pragma once

#include "formats.h"

namespace {

struct Q4_0x8 { half d[8]; uint8_t q[128]; };
struct RowScales { float d[BLOCKS][4], s[BLOCKS][4]; };

// Four values of every column, in the order of columns 0, 4, 1, 5, 2, 6, 3, 7; those of the next four.
INLINE void by_columns(__m256i first, __m256i last, __m256i &four, __m256i &next) {
    four = _mm256_blend_epi32(first, _mm256_shuffle_epi32(last, 0xb1), 0xaa);
    next = _mm256_blend_epi32(_mm256_shuffle_epi32(first, 0xb1), last, 0xaa);
}

template <int N>
void multiply_columns(const Q4_0x8 *w, int64_t blocks, const Q8_0 *rows, const RowScales &scales, float *to, int64_t next) {
    const __m256i low = _mm256_set1_epi8(15), signs = _mm256_set1_epi8((char)0x88);
    __m256 sums[N];
    for (int r = 0; r < N; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        __m256i q[8];
        for (int j = 0; j < 2; j++) {
            const __m256i first = _mm256_xor_si256(load(w[i].q + 64 * j), signs);
            const __m256i last = _mm256_xor_si256(load(w[i].q + 64 * j + 32), signs);
            by_columns(_mm256_and_si256(first, low), _mm256_and_si256(last, low), q[2 * j], q[2 * j + 1]);
            const __m256i above = _mm256_and_si256(_mm256_srli_epi16(first, 4), low);
            by_columns(above, _mm256_and_si256(_mm256_srli_epi16(last, 4), low), q[2 * j + 4], q[2 * j + 5]);
        }
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        const __m256 d = _mm256_permutevar8x32_ps(_mm256_cvtph_ps(load_half(w[i].d)), order);
        for (int r = 0; r < N; r++) {
            const int8_t *values = rows[r * blocks + i].q;
            __m256i all = _mm256_set1_epi32((int)scales.s[i][r]);
            for (int j = 0; j < 8; j++) {
                int four;
                __builtin_memcpy(&four, values + 4 * j, 4);
                all = add_byte_products(all, q[j], _mm256_set1_epi32(four));
            }
            const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(scales.d[i][r]));
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(all), scale, sums[r]);
        }
    }
    for (int r = 0; r < N; r++)
        _mm256_storeu_ps(to + r * next, _mm256_permutevar8x32_ps(sums[r], _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)));
}

}  // namespace
