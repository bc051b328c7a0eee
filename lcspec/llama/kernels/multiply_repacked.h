// Rows times repacked weights.
//
// A column has one sum in floating point, as in the library's functions for single rows (ggml_gemv_q4_K_8x8_q8_K,
// ggml_gemv_q4_0_8x8_q8_0 and others: ggml-cpu, arch/x86/repack.cpp); those for Q5_K, Q6_K and Q8_0, which the library
// repacks on ARM alone, sum in more steps.

#pragma once

#include "repacked.h"

namespace {

// Memory is read on from so many places at a time: near ones are read a third slower.
template <class W> constexpr int PLACES = 8 * GROUPS / Read<W>::COLUMNS;
// Columns that are multiplied together: a block has those at `first`, others are `apart` columns behind, `there` in all. Their
// results are at `column` and so on.
template <class W> struct Strips {
    const W *first;
    int64_t blocks, column, apart;
    int there;

    METHOD void begins_at(const W **places) const {
        for (int p = 0; p < PLACES<W>; p++) places[p] = first + (p < there ? p * apart / Read<W>::COLUMNS * blocks : 0);
    }
    METHOD void store(Floats sums, float *row) const {
        constexpr int size = Read<W>::COLUMNS;
        float all[8 * GROUPS];
        __builtin_memcpy(all, &sums, sizeof(all));
        for (int p = 0; p < there; p++) __builtin_memcpy(row + column + p * apart, all + p * size, size * sizeof(float));
    }
};

// Several rows are so much work, and blocks of Q6_K read in such an order, that the processor does not read on by itself.
template <class W> INLINE void read_ahead(const W *block, size_t from, size_t size) {
    for (size_t b = 0; b < size; b += 64) __builtin_prefetch((const char *)block + from + b);
}

// What the sums of a block are multiplied by.
template <class W> struct Factors {
    using R = Read<W>;
    Floats d, m;
    Whole of_pairs[R::PAIRS];

    METHOD Factors(const W *const *at, const Scales &scales) {
        __m256 of_d[GROUPS], of_m[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            of_d[g] = _mm256_cvtph_ps(load_half(at[g]->d));
            if constexpr (R::LEAST) of_m[g] = _mm256_cvtph_ps(load_half(at[g]->m));
        }
        d = joined(of_d);
        if constexpr (R::LEAST) m = joined(of_m);
        for (int j = 0; j < R::PAIRS; j++) of_pairs[j] = pairs(scales.pairs[j]);
    }
    METHOD void add(Whole sum, const Q8_K &row, const typename R::Sums &sums, Floats &products, Floats &beneath) const {
        const int *of_row = R::pairs_of(row, sums);
        Whole below = zero();
        for (int j = 0; j < R::PAIRS; j++) below = add_pairs(below, of_pairs[j], of_row[j]);
        if constexpr (R::LEAST) beneath = add_product(beneath, below, times(m, row.d));
        else sum = minus_32_times(sum, below);  // so much the values are too large
        products = add_product(products, sum, times(d, row.d));
    }
};

// `N` rows times columns, to `to[N]`; `sums[N][blocks]`.
template <int N, class W>
void multiply_columns(const Strips<W> &strips, const Q8_K *const *rows, const typename Read<W>::Sums *sums, float *const *to) {
    using R = Read<W>;
    Floats products[N], beneath[N];
    for (int r = 0; r < N; r++) products[r] = beneath[r] = no_floats();
    const W *at[GROUPS];
    strips.begins_at(at);
    for (int64_t i = 0; i < strips.blocks; i++) {
        Scales scales;
        Columns all[N][GROUPS];
        for (int g = 0; g < GROUPS; g++) R::scales(*at[g], g, scales);
        for (int r = 0; r < N; r++)
            for (int g = 0; g < GROUPS; g++) all[r][g] = none();
        for (int piece = 0; piece < R::PIECES; piece++) {
            Columns q[GROUPS][2 * R::HALF];
            decltype(R::scale(scales.of[0], 0)) scale[GROUPS];
            for (int g = 0; g < GROUPS; g++) {
                constexpr size_t size = sizeof(W) / R::PIECES;
                if (N > 1 || !R::LEAST) read_ahead(at[g] + 1, size * piece / 64 * 64, size);
                R::unpack(*at[g], piece, q[g]);
                scale[g] = R::scale(scales.of[g], piece);
            }
            for (int r = 0; r < N; r++) {
                const int8_t *x = rows[r][i].q + R::from(piece);
                Columns first[GROUPS], last[GROUPS];
                dot<R::HALF>(q, 0, x, first);
                dot<R::HALF>(q, R::HALF, x + R::BETWEEN, last);
                for (int g = 0; g < GROUPS; g++) all[r][g] = R::add(all[r][g], first[g], last[g], scale[g]);
            }
        }
        const Factors<W> factors(at, scales);
        for (int r = 0; r < N; r++)
            factors.add(R::columns(all[r]), rows[r][i], sums[r * strips.blocks + i], products[r], beneath[r]);
        for (const W *&block : at) block++;
    }
    for (int r = 0; r < N; r++) strips.store(R::LEAST ? minus(products[r], beneath[r]) : products[r], to[r]);
}

// The same of `n` rows, a multiple of EIGHT and at most MANY: a block is unpacked once for all, to four values of 16 columns
// in a vector.
constexpr int MANY = 64, EIGHT = 8;
#ifdef WIDE
template <class W>
METHOD void add_eight(const __m512i *four, const __m512i *scale, const Factors<W> &factors, const Q8_K *const *rows,
                      const typename Read<W>::Sums *sums, int64_t blocks, int64_t i, Floats *products, Floats *beneath) {
    constexpr int scales = Read<W>::SCALES, size = 64 / scales;
    __m512i all[EIGHT];
    for (int r = 0; r < EIGHT; r++) all[r] = zero();
    for (int s = 0; s < scales; s++) {
        __m512i dot[EIGHT];
        for (int r = 0; r < EIGHT; r++) dot[r] = zero();
        for (int v = size * s; v < size * (s + 1); v++)
            for (int r = 0; r < EIGHT; r++) {
                int values;
                __builtin_memcpy(&values, rows[r][i].q + 4 * v, 4);
                dot[r] = _mm512_dpbusd_epi32(dot[r], four[v], _mm512_set1_epi32(values));
            }
        for (int r = 0; r < EIGHT; r++) all[r] = _mm512_add_epi32(all[r], _mm512_mullo_epi32(dot[r], scale[s]));
    }
    for (int r = 0; r < EIGHT; r++) factors.add(all[r], rows[r][i], sums[r * blocks + i], products[r], beneath[r]);
}
template <class W>
void multiply_many(const Strips<W> &strips, int n, const Q8_K *const *rows, const typename Read<W>::Sums *sums, float *const *to) {
    using R = Read<W>;
    Floats products[MANY], beneath[MANY];
    for (int r = 0; r < n; r++) products[r] = beneath[r] = no_floats();
    const W *at[GROUPS];
    strips.begins_at(at);
    for (int64_t i = 0; i < strips.blocks; i++) {
        Scales scales;
        __m512i four[64], scale[R::SCALES];
        for (int g = 0; g < GROUPS; g++) R::scales(*at[g], g, scales);
        for (int s = 0; s < R::SCALES; s++) {
            const __m128i first = _mm_loadl_epi64((const __m128i *)(scales.of[0] + 8 * s));
            const __m128i last = _mm_loadl_epi64((const __m128i *)(scales.of[1] + 8 * s));
            scale[s] = _mm512_cvtepi8_epi32(_mm_unpacklo_epi64(first, last));
        }
        for (int p = 0; p < R::PIECES; p++) {
            Columns q[GROUPS][2 * R::HALF];
            for (int g = 0; g < GROUPS; g++) R::unpack(*at[g], p, q[g]);
            for (int t = 0; t < 2 * R::HALF; t++) {
                __m512i *v = four + (R::from(p) + t / R::HALF * R::BETWEEN) / 4 + t % R::HALF * 2;
                const Lanes lanes = lanes_of(q[0][t], q[1][t]);
                v[0] = lanes.first;
                v[1] = lanes.second;
            }
        }
        const Factors<W> factors(at, scales);
        for (int r = 0; r < n; r += EIGHT) {
            const int64_t blocks = strips.blocks;
            for (const W *block : at) read_ahead(block + 1, sizeof(W) * r / n / 64 * 64, sizeof(W) * EIGHT / n);
            add_eight(four, scale, factors, rows + r, sums + r * blocks, blocks, i, products + r, beneath + r);
        }
        for (const W *&block : at) block++;
    }
    for (int r = 0; r < n; r++) strips.store(R::LEAST ? minus(products[r], beneath[r]) : products[r], to[r]);
}
#endif

// The same of blocks of 32 values.
template <int N, class W>
void multiply_columns(const Strips<W> &strips, const Q8_0 *const *rows, const typename Read<W>::Sums *sums, float *const *to) {
    using R = Read<W>;
    Floats all[N];
    for (int r = 0; r < N; r++) all[r] = no_floats();
    const W *at[PLACES<W>];
    strips.begins_at(at);
    for (int64_t i = 0; i < strips.blocks; i++) {
        Columns q[GROUPS][4];
        __m256 d[GROUPS];
        if (N > 1)
            for (const W *block : at) read_ahead(block + 8, 0, sizeof(W));
        for (int g = 0; g < GROUPS; g++) {
            R::unpack(at + PLACES<W> / GROUPS * g, q[g]);
            d[g] = R::scales(at + PLACES<W> / GROUPS * g);
        }
        for (int r = 0; r < N; r++) {
            const auto &of_row = sums[r * strips.blocks + i];
            const Whole sum = plus(dots<4, R::SIGNED>(q, rows[r][i].q), of_row.too_much);
            all[r] = add_product(all[r], sum, times(joined(d), of_row.d));
        }
        for (const W *&block : at) block++;
    }
    for (int r = 0; r < N; r++) strips.store(all[r], to[r]);
}

// `n` rows times some columns; `N`: so many, or 0: many.
template <int N, class W, class Row>
void multiply_rows(const W *w, int64_t from, int64_t columns, int64_t blocks, int n, const Row *const *rows, float *const *to) {
    using Sums = typename Read<W>::Sums;
    Sums *sums = (Sums *)__builtin_alloca(n * blocks * sizeof(Sums));
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < blocks; i++) sums[r * blocks + i] = Read<W>::sums(rows[r][i]);
    constexpr int64_t each = Read<W>::COLUMNS, places = PLACES<W>;
    const int64_t apart = (columns / each + places - 1) / places * each, to_end = from + columns;
    for (int64_t c = from; c < from + apart; c += each) {
        const Strips<W> strips{w + c / each * blocks, blocks, c, apart, (int)((to_end - c + apart - 1) / apart)};
        if constexpr (N) multiply_columns<N>(strips, rows, sums, to);
        else multiply_many(strips, n, rows, sums, to);
    }
}

// `n` rows times the columns `from` ... `to`, multiples of eight; `row_at(i, row, out)` says where row `i` is, and where
// its results belong.
template <class W, class At> void multiply_repacked(const W *w, int64_t from, int64_t to, int64_t blocks, int64_t n, At row_at) {
    using Row = typename Read<W>::Row;
    constexpr int MOST = Read<W>::MOST;
    constexpr bool many = Read<W>::WORTH < NEVER;
    const int64_t at_once = n <= MOST ? to - from : 2 * COLUMNS;
    for (; from < to; from += at_once) {
        const int64_t columns = to - from < at_once ? to - from : at_once;
        for (int64_t i = 0; i < n;) {
            const int64_t left = n - i, few = left >= MOST ? MOST : left < 4 ? left : 4;
            const int some = (int)(left < Read<W>::WORTH ? few : left < MANY ? left / EIGHT * EIGHT : MANY);
            const Row *rows[MANY];
            float *out[MANY];
            for (int r = 0; r < some; r++) row_at(i + r, rows[r], out[r]);
            i += some;
            switch (some) {
                case 1: multiply_rows<1>(w, from, columns, blocks, some, rows, out); break;
                case 2: multiply_rows<2>(w, from, columns, blocks, some, rows, out); break;
                case 3: multiply_rows<3>(w, from, columns, blocks, some, rows, out); break;
                case 4: multiply_rows<4>(w, from, columns, blocks, some, rows, out); break;
                case MOST > 4 ? MOST : 5: multiply_rows<MOST>(w, from, columns, blocks, some, rows, out); break;
                default: if constexpr (many) multiply_rows<0>(w, from, columns, blocks, some, rows, out);
            }
        }
    }
}

}  // namespace
