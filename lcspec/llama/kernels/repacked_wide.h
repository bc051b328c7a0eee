// Weights as the library repacks them, with VNNI and 512 bits: blocks of eight columns, eight bytes of each in turn.
//
// A lane sums for one column alone, so that 32 values of 16 columns need one multiplication by their scales, where weights
// as they are stored need 16. A column has one sum in floating point, as in the library's functions for single rows
// (ggml_gemv_q4_K_8x8_q8_K and ggml_gemv_q4_0_8x8_q8_0: ggml-cpu, arch/x86/repack.cpp); those for Q5_K, Q6_K and Q8_0,
// which the library repacks on ARM alone, sum in more steps.

#pragma once

#include "formats.h"
#include "repacked.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define WIDE_REPACKED

namespace {

struct Q4_Kx8 { half d[8], m[8]; uint8_t scales[96], q[1024]; };
struct Q5_Kx8 { half d[8], m[8]; uint8_t scales[96], h[256], q[1024]; };
struct Q6_Kx8 { half d[8]; int8_t scales[128]; uint8_t q[1024], h[512]; };
struct Q8_0x4 { half d[4]; int8_t q[128]; };
struct IQ4_NLx8 { half d[8]; uint8_t q[128]; };
struct MXFP4x8 { uint8_t exponents[8], q[128]; };

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
// Of two vectors with two sums for each of eight columns, one after the other: one with their sums, for 16 columns.
INLINE __m512i by_column(__m512i first, __m512i last) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_add_epi32(_mm512_permutex2var_epi32(first, even, last),
                            _mm512_permutex2var_epi32(first, _mm512_or_si512(even, _mm512_set1_epi32(1)), last));
}

// Scales and least values of eight columns in turn, for 32 values, the next 32 and so on; least ones of both together.
struct Scales { alignas(64) int8_t of[2][128], pairs[8][32]; };
template <class W> INLINE void unpack_scales(const W &w, int8_t *scales, int8_t *least, int64_t pitch) {
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

// How blocks of 32 values are read, what rows are rounded to, and what is summed of each of their blocks beforehand.
template <class W> struct Read;
template <int LARGER> struct Of32Values {  // as bytes without a sign, which are `LARGER`
    using Row = Q8_0;
    static constexpr int MOST = 8;
    struct Sums { float d; int too_much; };
    METHOD static Sums sums(const Q8_0 &b) {
        const __m256i ones = _mm256_set1_epi8(1);
        return {value(b.d), -LARGER * sum_of(_mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, load(b.q)))};
    }
};
template <int LARGER, class W> struct Of32Halves : Of32Values<LARGER> {
    static constexpr int COLUMNS = 8;
    METHOD static __m256 scales(const W *w, int64_t) { return _mm256_cvtph_ps(load_half(w->d)); }
    METHOD static void unpack(const W *w, __m512i with, __m512i *q) {
        const __m512i low = _mm512_set1_epi8(15);
        for (int t = 0; t < 2; t++) {
            const __m512i both = _mm512_xor_si512(_mm512_loadu_si512(w->q + 64 * t), with);
            q[t] = _mm512_and_si512(both, low);
            q[t + 2] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
    }
    METHOD static void look_up(const W *w, __m128i levels, __m512i *q) {
        unpack(w, _mm512_setzero_si512(), q);
        const __m512i larger = _mm512_broadcast_i32x4(_mm_add_epi8(levels, _mm_set1_epi8((char)LARGER)));
        for (int t = 0; t < 4; t++) q[t] = _mm512_shuffle_epi8(larger, q[t]);
    }
};
template <> struct Read<Q4_0x8> : Of32Halves<8, Q4_0x8> {
    METHOD static void unpack(const Q4_0x8 *w, int64_t, __m512i *q) {
        Of32Halves::unpack(w, _mm512_set1_epi8((char)0x88), q);  // the library gives them a sign
    }
};
template <> struct Read<IQ4_NLx8> : Of32Halves<128, IQ4_NLx8> {
    METHOD static void unpack(const IQ4_NLx8 *w, int64_t, __m512i *q) { look_up(w, levels_of_iq4(), q); }
};
template <> struct Read<MXFP4x8> : Of32Halves<12, MXFP4x8> {
    METHOD static void unpack(const MXFP4x8 *w, int64_t, __m512i *q) { look_up(w, levels_of_mxfp4(), q); }
    // Half of two to the power of `exponent` - 127.
    METHOD static __m256 scales(const MXFP4x8 *w, int64_t) {
        const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)w->exponents));
        const __m256i smallest = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), e);  // not normal
        const __m256i others = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
        return _mm256_castsi256_ps(_mm256_blendv_epi8(smallest, others, normal));
    }
};
template <> struct Read<Q8_0x4> : Of32Values<128> {
    static constexpr int COLUMNS = 4;
    METHOD static __m256 scales(const Q8_0x4 *w, int64_t blocks) {
        const __m128i first = _mm_loadl_epi64((const __m128i *)w->d), last = _mm_loadl_epi64((const __m128i *)w[blocks].d);
        return _mm256_cvtph_ps(_mm_unpacklo_epi64(first, last));
    }
    METHOD static void unpack(const Q8_0x4 *w, int64_t blocks, __m512i *q) {
        for (int t = 0; t < 4; t++)
            q[t] = _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(load(w->q + 32 * t)), load(w[blocks].q + 32 * t), 1),
                                    _mm512_set1_epi8((char)0x80));
    }
};

// How blocks of 256 values are read: in `PIECES` of `VECTORS`, each eight values of every column; the second half of them
// are `BETWEEN` values behind the first, and have other scales. `add` adds sums of both, multiplied by these.
struct Of256Values {
    using Row = Q8_K;
    static constexpr int COLUMNS = 8, MOST = 4;
};
struct WithLeast : Of256Values {
    static constexpr int PIECES = 4, VECTORS = 8, BETWEEN = 32, PAIRS = 4;
    static constexpr bool LEAST = true;
    using Sums = __m128i;  // of 32 values each
    METHOD static Sums sums(const Q8_K &b) { return _mm_hadd_epi16(load_half(b.sums), load_half(b.sums + 8)); }
    METHOD static int from(int piece) { return 64 * piece; }
    template <class W> METHOD static void scales(const W &w, int g, Scales &to) {
        unpack_scales(w, to.of[g], to.pairs[0] + 16 * g, 32);
    }
};
template <> struct Read<Q4_Kx8> : WithLeast {
    struct Scale { __m512i both; };
    METHOD static Scale scale(const int8_t *of, int piece) {
        // A lane of 128 bits has two columns: 16 bits of scale twice for each, for 32 values and the next 32.
#define COLUMNS_AT(a) a, -1, a, -1, a + 1, -1, a + 1, -1, a + 8, -1, a + 8, -1, a + 9, -1, a + 9, -1
        alignas(64) static const int8_t places[64] = {COLUMNS_AT(0), COLUMNS_AT(2), COLUMNS_AT(4), COLUMNS_AT(6)};
#undef COLUMNS_AT
        return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_half(of + 16 * piece)), _mm512_load_si512(places))};
    }
    METHOD static void unpack(const Q4_Kx8 &w, int piece, __m512i *q) {
        const __m512i low = _mm512_set1_epi8(15);
        for (int t = 0; t < 4; t++) {
            const __m512i both = _mm512_loadu_si512(w.q + 64 * (4 * piece + t));
            q[t] = _mm512_and_si512(both, low);
            q[t + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
    }
    METHOD static __m512i add(__m512i all, __m512i first, __m512i last, const Scale &scale) {
        // 16 products of 15 and 128 at most are less than 2^15.
        return _mm512_dpwssd_epi32(all, _mm512_packs_epi32(first, last), scale.both);
    }
    METHOD static __m512i columns(__m512i first, __m512i last) {
        const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
        return _mm512_add_epi32(_mm512_permutex2var_epi64(first, even, last), _mm512_permutex2var_epi64(first, odd, last));
    }
};
// Sums that need 32 bits.
template <class Base> struct Large32 : Base {
    struct Scale { __m512i first, last; };
    METHOD static __m512i twice(const int8_t *eight) {
        const __m128i scales = _mm_loadl_epi64((const __m128i *)eight);
        return _mm512_cvtepi8_epi32(_mm_unpacklo_epi8(scales, scales));
    }
    METHOD static __m512i add(__m512i all, __m512i first, __m512i last, const Scale &scale) {
        all = _mm512_add_epi32(all, _mm512_mullo_epi32(first, scale.first));
        return _mm512_add_epi32(all, _mm512_mullo_epi32(last, scale.last));
    }
    METHOD static __m512i columns(__m512i first, __m512i last) { return by_column(first, last); }
    // Four bits of each value, and one or two above them, moved `left` to there (as bytes, so rightwards as well).
    METHOD static __m512i with_top(__m512i four, __m512i top, int left, char mask) {
        const __m512i there = _mm512_and_si512(_mm512_rolv_epi32(top, _mm512_set1_epi32(left)), _mm512_set1_epi8(mask));
        return _mm512_or_si512(_mm512_and_si512(four, _mm512_set1_epi8(15)), there);
    }
};
template <> struct Read<Q5_Kx8> : Large32<WithLeast> {
    METHOD static Scale scale(const int8_t *of, int piece) { return {twice(of + 16 * piece), twice(of + 16 * piece + 8)}; }
    METHOD static void unpack(const Q5_Kx8 &w, int piece, __m512i *q) {
        for (int t = 0; t < 4; t++) {
            const __m512i both = _mm512_loadu_si512(w.q + 64 * (4 * piece + t)), h = _mm512_loadu_si512(w.h + 64 * t);
            q[t] = with_top(both, h, 4 - 2 * piece, 16);
            q[t + 4] = with_top(_mm512_srli_epi16(both, 4), h, 3 - 2 * piece, 16);
        }
    }
};
template <> struct Read<Q6_Kx8> : Large32<Of256Values> {
    static constexpr int PIECES = 8, VECTORS = 4, BETWEEN = 64, PAIRS = 8;
    static constexpr bool LEAST = false;
    struct Sums {};
    METHOD static Sums sums(const Q8_K &) { return {}; }
    METHOD static int from(int piece) { return piece / 4 * 128 + piece % 4 * 16; }
    METHOD static void scales(const Q6_Kx8 &w, int g, Scales &to) {
        _mm512_storeu_si512(to.of[g], _mm512_loadu_si512(w.scales));
        _mm512_storeu_si512(to.of[g] + 64, _mm512_loadu_si512(w.scales + 64));
        for (int j = 0; j < 8; j++) {
            const __m128i two = load_half(w.scales + 16 * j);
            _mm_storeu_si128((__m128i *)(to.pairs[j] + 16 * g), _mm_unpacklo_epi8(two, _mm_srli_si128(two, 8)));
        }
    }
    METHOD static Scale scale(const int8_t *of, int piece) {
        const int8_t *first = of + piece / 4 * 64 + piece % 4 * 8;
        return {twice(first), twice(first + 32)};
    }
    METHOD static void unpack(const Q6_Kx8 &w, int piece, __m512i *q) {
        const int left = piece % 4 < 2 ? 4 : 2;
        for (int t = 0; t < 2; t++) {
            const __m512i both = _mm512_loadu_si512(w.q + 64 * (2 * piece + t));
            const __m512i h = _mm512_loadu_si512(w.h + 64 * (piece / 4 * 4 + piece % 2 * 2 + t));
            q[t] = with_top(both, h, left, 48);
            q[t + 2] = with_top(_mm512_srli_epi16(both, 4), h, left - 4, 48);
        }
    }
};
INLINE const int *pairs_of(const Q8_K &, const __m128i &sums) { return (const int *)&sums; }
template <class Sums> INLINE const int *pairs_of(const Q8_K &b, const Sums &) { return (const int *)b.sums; }

// `N` rows times eight columns, and eight more that are `apart` columns behind (0: none), to `to[N][column]` and behind;
// `sums[N][blocks]`.
template <int N, class W>
void multiply_columns(const W *w, int64_t apart, int64_t blocks, const Q8_K *const *rows,
                      const typename Read<W>::Sums *sums, float *const *to, int64_t column) {
    using R = Read<W>;
    constexpr int HALF = R::VECTORS / 2;
    __m512 products[N], beneath[N];
    for (int r = 0; r < N; r++) products[r] = beneath[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        const W *at[] = {w + i, w + i + apart / 8 * blocks};
        Scales scales;
        __m512i all[N][2];
        for (int g = 0; g < 2; g++) R::scales(*at[g], g, scales);
        for (int r = 0; r < N; r++) all[r][0] = all[r][1] = _mm512_setzero_si512();
        for (int piece = 0; piece < R::PIECES; piece++) {
            __m512i q[2][R::VECTORS];
            typename R::Scale scale[2];
            for (int g = 0; g < 2; g++) {
                R::unpack(*at[g], piece, q[g]);
                scale[g] = R::scale(scales.of[g], piece);
            }
            for (int r = 0; r < N; r++) {
                const int8_t *x = rows[r][i].q + R::from(piece);
                __m512i dot[2][2];
                for (int h = 0; h < 2; h++) {
                    dot[0][h] = dot[1][h] = _mm512_setzero_si512();
                    for (int t = 0; t < HALF; t++) {
                        const __m512i values = eight_values(x + R::BETWEEN * h + 8 * t);
                        for (int g = 0; g < 2; g++) dot[g][h] = _mm512_dpbusd_epi32(dot[g][h], q[g][HALF * h + t], values);
                    }
                }
                for (int g = 0; g < 2; g++) all[r][g] = R::add(all[r][g], dot[g][0], dot[g][1], scale[g]);
            }
        }
        const __m512 d = _mm512_cvtph_ps(of_both(at[0]->d, at[1]->d));
        __m512i pairs[R::PAIRS];
        for (int j = 0; j < R::PAIRS; j++) pairs[j] = _mm512_cvtepi8_epi16(load(scales.pairs[j]));
        for (int r = 0; r < N; r++) {
            const __m512 scale = _mm512_set1_ps(rows[r][i].d);
            __m512i sum = R::columns(all[r][0], all[r][1]), below = _mm512_setzero_si512();
            const int *of_row = pairs_of(rows[r][i], sums[r * blocks + i]);
            for (int j = 0; j < R::PAIRS; j++) below = _mm512_dpwssd_epi32(below, pairs[j], _mm512_set1_epi32(of_row[j]));
            if constexpr (R::LEAST) {
                const __m512 m = _mm512_cvtph_ps(of_both(at[0]->m, at[1]->m));
                beneath[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(below), _mm512_mul_ps(m, scale), beneath[r]);
            } else {
                sum = _mm512_sub_epi32(sum, _mm512_slli_epi32(below, 5));  // values are 32 too large
            }
            products[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, scale), products[r]);
        }
    }
    for (int r = 0; r < N; r++) store(R::LEAST ? _mm512_sub_ps(products[r], beneath[r]) : products[r], to[r] + column, apart);
}

// The same of blocks of 32 values.
template <int N, class W>
void multiply_columns(const W *w, int64_t apart, int64_t blocks, const Q8_0 *const *rows,
                      const typename Read<W>::Sums *sums, float *const *to, int64_t column) {
    using R = Read<W>;
    __m512 all[N];
    for (int r = 0; r < N; r++) all[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        const W *at[] = {w + i, w + i + apart / R::COLUMNS * blocks};
        __m512i q[2][4];
        for (int g = 0; g < 2; g++) R::unpack(at[g], blocks, q[g]);
        const __m512 d = _mm512_insertf32x8(_mm512_castps256_ps512(R::scales(at[0], blocks)), R::scales(at[1], blocks), 1);
        for (int r = 0; r < N; r++) {
            __m512i dot[] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
            for (int t = 0; t < 4; t++) {
                const __m512i values = eight_values(rows[r][i].q + 8 * t);
                for (int g = 0; g < 2; g++) dot[g] = _mm512_dpbusd_epi32(dot[g], q[g][t], values);
            }
            const auto &of_row = sums[r * blocks + i];
            const __m512i sum = _mm512_add_epi32(by_column(dot[0], dot[1]), _mm512_set1_epi32(of_row.too_much));
            all[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, _mm512_set1_ps(of_row.d)), all[r]);
        }
    }
    for (int r = 0; r < N; r++) store(all[r], to[r] + column, apart);
}

template <int N, class W, class Row>
void multiply_rows(const W *w, int64_t from, int64_t columns, int64_t blocks, const Row *const *rows, float *const *to) {
    using Sums = typename Read<W>::Sums;
    Sums *sums = (Sums *)__builtin_alloca(N * blocks * sizeof(Sums));
    for (int r = 0; r < N; r++)
        for (int64_t i = 0; i < blocks; i++) sums[r * blocks + i] = Read<W>::sums(rows[r][i]);
    // Memory is read on from two places.
    const int64_t apart = (columns / 8 + 1) / 2 * 8;
    for (int64_t c = from; c < from + apart; c += 8)
        multiply_columns<N>(w + c / Read<W>::COLUMNS * blocks, c + apart < from + columns ? apart : 0, blocks, rows, sums, to, c);
}

// `n` rows times the columns `from` ... `to`, multiples of eight; `row_at(i, row, out)` says where row `i` is, and where
// its results belong.
template <class W, class At> void multiply_repacked(const W *w, int64_t from, int64_t to, int64_t blocks, int64_t n, At row_at) {
    constexpr int MOST = Read<W>::MOST;
    const int64_t at_once = n <= MOST ? to - from : COLUMNS;
    for (; from < to; from += at_once) {
        const int64_t columns = to - from < at_once ? to - from : at_once;
        for (int64_t i = 0, some; i < n; i += some) {
            some = n - i >= MOST ? MOST : n - i < 4 ? n - i : 4;
            const typename Read<W>::Row *rows[MOST];
            float *out[MOST];
            for (int r = 0; r < some; r++) row_at(i + r, rows[r], out[r]);
            switch (some) {
                case 1: multiply_rows<1>(w, from, columns, blocks, rows, out); break;
                case 2: multiply_rows<2>(w, from, columns, blocks, rows, out); break;
                case 3: multiply_rows<3>(w, from, columns, blocks, rows, out); break;
                case 4: multiply_rows<4>(w, from, columns, blocks, rows, out); break;
                default: multiply_rows<MOST>(w, from, columns, blocks, rows, out);
            }
        }
    }
}

}  // namespace

#endif
