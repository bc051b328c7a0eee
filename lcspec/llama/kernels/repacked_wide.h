// Q4_K and Q4_0, as the library repacks them, with VNNI and 512 bits: blocks of eight columns, eight bytes of each in turn.
//
// A lane sums for one column alone, so that 32 values of 16 columns need one multiplication by their scales, where weights
// as they are stored need 16. The sums are those of the library's functions for single rows (ggml_gemv_q4_K_8x8_q8_K and
// ggml_gemv_q4_0_8x8_q8_0: ggml-cpu, arch/x86/repack.cpp): one in floating point for each column.

#pragma once

#include "formats.h"
#include "repacked.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define WIDE_REPACKED

namespace {

struct Q4_Kx8 { half d[8], m[8]; uint8_t scales[96], q[1024]; };

// What rows are rounded to for these weights, and what is summed of each of their blocks beforehand.
template <class W> struct Rounded;
template <> struct Rounded<Q4_Kx8> {
    using Row = Q8_K;
    using Sums = __m128i;  // of 64 values each, as four pairs
    METHOD static Sums sums(const Row &b) { return _mm_hadd_epi16(load_half(b.sums), load_half(b.sums + 8)); }
};
template <> struct Rounded<Q4_0x8> {
    using Row = Q8_0;
    struct Sums { float d; int too_much; };  // because nibbles are taken as 8 larger
    METHOD static Sums sums(const Row &b) {
        const __m256i ones = _mm256_set1_epi8(1);
        return {value(b.d), -8 * sum_of(_mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, load(b.q)))};
    }
};

// Scales and least values of eight columns, for 32 values and the next 32 of each: scales[4][16] has eight and eight, and
// least[4], which are `pitch` bytes apart, has them in turn.
INLINE void unpack_scales(const Q4_Kx8 &w, uint8_t *scales, uint8_t *least, int64_t pitch) {
    const __m512i first = _mm512_loadu_si512(w.scales), last = _mm512_castsi256_si512(load(w.scales + 64));
    const __m512i third = _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 0, 0, 0, 0, 0, 0, 0, 0);
    __m256i packed[3];
    for (int j = 0; j < 3; j++)
        packed[j] = _mm512_castsi512_si256(
            _mm512_permutex2var_epi32(first, _mm512_add_epi32(third, _mm512_set1_epi32(j)), last));
    const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15), two = _mm256_set1_epi8(48);
    const __m256i s = _mm256_and_si256(packed[0], six), m = _mm256_and_si256(packed[1], six);
    const __m256i s4 = _mm256_or_si256(_mm256_and_si256(packed[2], four),
                                       _mm256_and_si256(_mm256_srli_epi16(packed[0], 2), two));
    const __m256i m4 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(packed[2], 4), four),
                                       _mm256_and_si256(_mm256_srli_epi16(packed[1], 2), two));
    const __m256i in_turn =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    const __m256i of_scales[] = {_mm256_unpacklo_epi32(s, s4), _mm256_unpackhi_epi32(s, s4)};
    const __m256i of_least[] = {_mm256_shuffle_epi8(_mm256_unpacklo_epi32(m, m4), in_turn),
                                _mm256_shuffle_epi8(_mm256_unpackhi_epi32(m, m4), in_turn)};
    for (int j = 0; j < 2; j++) {
        _mm_storeu_si128((__m128i *)(scales + 16 * j), _mm256_castsi256_si128(of_scales[j]));
        _mm_storeu_si128((__m128i *)(scales + 16 * (j + 2)), _mm256_extracti128_si256(of_scales[j], 1));
        _mm_storeu_si128((__m128i *)(least + j * pitch), _mm256_castsi256_si128(of_least[j]));
        _mm_storeu_si128((__m128i *)(least + (j + 2) * pitch), _mm256_extracti128_si256(of_least[j], 1));
    }
}

INLINE __m512i eight_values(const int8_t *x) {
    long long eight;
    __builtin_memcpy(&eight, x, 8);
    return _mm512_set1_epi64(eight);
}
INLINE void store(__m512 sum, float *to, int64_t apart) {
    _mm256_storeu_ps(to, _mm512_castps512_ps256(sum));
    if (apart) _mm256_storeu_ps(to + apart, _mm512_extractf32x8_ps(sum, 1));
}
INLINE __m256i of_both(const half *first, const half *last) {
    return _mm256_set_m128i(load_half(last), load_half(first));
}

// `N` rows times eight columns, and eight more that are `apart` columns behind (0: none), to `to[N][column]` and behind;
// `sums[N][blocks]`.
template <int N>
void multiply_columns(const Q4_Kx8 *w, int64_t apart, int64_t blocks, const Q8_K *const *rows, const __m128i *sums,
                      float *const *to, int64_t column) {
    // A lane of 128 bits has two columns: 16 bits of scale twice for each, for 32 values and the next 32.
#define COLUMNS_AT(a) a, -1, a, -1, a + 1, -1, a + 1, -1, a + 8, -1, a + 8, -1, a + 9, -1, a + 9, -1
    alignas(64) static const int8_t places[64] = {COLUMNS_AT(0), COLUMNS_AT(2), COLUMNS_AT(4), COLUMNS_AT(6)};
#undef COLUMNS_AT
    const __m512i order = _mm512_load_si512(places), low = _mm512_set1_epi8(15);
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
    __m512 products[N], beneath[N];
    for (int r = 0; r < N; r++) products[r] = beneath[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        const Q4_Kx8 *at[] = {w + i, w + i + apart / 8 * blocks};
        alignas(64) uint8_t scales[2][64], least[4][32];
        __m512i all[N][2];
        for (int g = 0; g < 2; g++) unpack_scales(*at[g], scales[g], least[0] + 16 * g, 32);
        for (int r = 0; r < N; r++) all[r][0] = all[r][1] = _mm512_setzero_si512();
        for (int j = 0; j < 4; j++) {
            __m512i q[2][2][4], scale[2];
            for (int g = 0; g < 2; g++) {
                scale[g] = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_half(scales[g] + 16 * j)), order);
                for (int t = 0; t < 4; t++) {
                    const __m512i both = _mm512_loadu_si512(at[g]->q + 64 * (4 * j + t));
                    q[g][0][t] = _mm512_and_si512(both, low);
                    q[g][1][t] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
                }
            }
            for (int r = 0; r < N; r++) {
                const int8_t *x = rows[r][i].q + 64 * j;
                __m512i dot[2][2];
                for (int h = 0; h < 2; h++) {
                    dot[0][h] = dot[1][h] = _mm512_setzero_si512();
                    for (int t = 0; t < 4; t++) {
                        const __m512i values = eight_values(x + 32 * h + 8 * t);
                        for (int g = 0; g < 2; g++) dot[g][h] = _mm512_dpbusd_epi32(dot[g][h], q[g][h][t], values);
                    }
                }
                // 16 products of 15 and 128 at most are less than 2^15.
                for (int g = 0; g < 2; g++)
                    all[r][g] = _mm512_dpwssd_epi32(all[r][g], _mm512_packs_epi32(dot[g][0], dot[g][1]), scale[g]);
            }
        }
        const __m512 d = _mm512_cvtph_ps(of_both(at[0]->d, at[1]->d)), m = _mm512_cvtph_ps(of_both(at[0]->m, at[1]->m));
        __m512i pairs[4];
        for (int j = 0; j < 4; j++) pairs[j] = _mm512_cvtepu8_epi16(load(least[j]));
        for (int r = 0; r < N; r++) {
            const __m512 scale = _mm512_set1_ps(rows[r][i].d);
            const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi64(all[r][0], even, all[r][1]),
                                                 _mm512_permutex2var_epi64(all[r][0], odd, all[r][1]));
            const int *of_row = (const int *)(sums + r * blocks + i);
            __m512i below = _mm512_setzero_si512();
            for (int j = 0; j < 4; j++) below = _mm512_dpwssd_epi32(below, pairs[j], _mm512_set1_epi32(of_row[j]));
            products[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, scale), products[r]);
            beneath[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(below), _mm512_mul_ps(m, scale), beneath[r]);
        }
    }
    for (int r = 0; r < N; r++) store(_mm512_sub_ps(products[r], beneath[r]), to[r] + column, apart);
}

template <int N>
void multiply_columns(const Q4_0x8 *w, int64_t apart, int64_t blocks, const Q8_0 *const *rows,
                      const Rounded<Q4_0x8>::Sums *sums, float *const *to, int64_t column) {
    const __m512i low = _mm512_set1_epi8(15), signs = _mm512_set1_epi8((char)0x88);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    __m512 all[N];
    for (int r = 0; r < N; r++) all[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        const Q4_0x8 *at[] = {w + i, w + i + apart / 8 * blocks};
        __m512i q[2][4];
        for (int g = 0; g < 2; g++)
            for (int t = 0; t < 2; t++) {
                const __m512i both = _mm512_xor_si512(_mm512_loadu_si512(at[g]->q + 64 * t), signs);
                q[g][t] = _mm512_and_si512(both, low);
                q[g][t + 2] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
            }
        const __m512 d = _mm512_cvtph_ps(of_both(at[0]->d, at[1]->d));
        for (int r = 0; r < N; r++) {
            __m512i dot[] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
            for (int t = 0; t < 4; t++) {
                const __m512i values = eight_values(rows[r][i].q + 8 * t);
                for (int g = 0; g < 2; g++) dot[g] = _mm512_dpbusd_epi32(dot[g], q[g][t], values);
            }
            const auto &of_row = sums[r * blocks + i];
            const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(dot[0], even, dot[1]),
                                                 _mm512_permutex2var_epi32(dot[0], odd, dot[1]));
            const __m512i right = _mm512_add_epi32(sum, _mm512_set1_epi32(of_row.too_much));
            all[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(right), _mm512_mul_ps(d, _mm512_set1_ps(of_row.d)), all[r]);
        }
    }
    for (int r = 0; r < N; r++) store(all[r], to[r] + column, apart);
}

template <int N, class W, class Row>
void multiply_rows(const W *w, int64_t from, int64_t columns, int64_t blocks, const Row *const *rows, float *const *to) {
    using Sums = typename Rounded<W>::Sums;
    Sums *sums = (Sums *)__builtin_alloca(N * blocks * sizeof(Sums));
    for (int r = 0; r < N; r++)
        for (int64_t i = 0; i < blocks; i++) sums[r * blocks + i] = Rounded<W>::sums(rows[r][i]);
    // Memory is read on from two places.
    const int64_t apart = (columns / 8 + 1) / 2 * 8;
    for (int64_t c = from; c < from + apart; c += 8)
        multiply_columns<N>(w + c / 8 * blocks, c + apart < from + columns ? apart : 0, blocks, rows, sums, to, c);
}

// `n` rows times the columns `from` ... `to`, multiples of eight; `row_at(i, row, out)` says where row `i` is, and where
// its results belong.
template <class W, class At> void multiply_repacked(const W *w, int64_t from, int64_t to, int64_t blocks, int64_t n, At row_at) {
    constexpr int MOST = 4;
    const int64_t at_once = n <= MOST ? to - from : COLUMNS;
    for (; from < to; from += at_once) {
        const int64_t columns = to - from < at_once ? to - from : at_once;
        for (int64_t i = 0; i < n; i += MOST) {
            const int some = (int)(n - i < MOST ? n - i : MOST);
            const typename Rounded<W>::Row *rows[MOST];
            float *out[MOST];
            for (int r = 0; r < some; r++) row_at(i + r, rows[r], out[r]);
            switch (some) {
                case 1: multiply_rows<1>(w, from, columns, blocks, rows, out); break;
                case 2: multiply_rows<2>(w, from, columns, blocks, rows, out); break;
                case 3: multiply_rows<3>(w, from, columns, blocks, rows, out); break;
                default: multiply_rows<4>(w, from, columns, blocks, rows, out);
            }
        }
    }
}

}  // namespace

#endif
