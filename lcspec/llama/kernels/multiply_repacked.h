// Rows times repacked weights.
//
// A column has one sum in floating point, as in the library's functions for single rows (ggml_gemv_q4_K_8x8_q8_K,
// ggml_gemv_q4_0_8x8_q8_0 and others: ggml-cpu, arch/x86/repack.cpp); those for Q5_K, Q6_K and Q8_0, which the library
// repacks on ARM alone, sum in more steps.

#pragma once

#include "many_rows.h"

namespace {

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
            decltype(R::both(scales.of[0], scales.of[0])) scale[GROUPS];
            for (int g = 0; g < GROUPS; g++) {
                constexpr size_t size = sizeof(W) / R::PIECES;
                const char *own = (const char *)at[g] + size * piece / 64 * 64;
                if (!R::IN_TURN) read_ahead<NEAR>(own + sizeof(W), size);  // the processor does not foresee it
                if (N > 1 || (GROUPS > 1 && !R::IN_TURN)) read_ahead(own + 3 * sizeof(W), size);
                R::unpack(*at[g], piece, q[g]);
                const int8_t *of = scales.of[g] + R::scales_from(piece);
                scale[g] = R::both(of, of + R::SCALES_BETWEEN);
            }
            for (int r = 0; r < N; r++) {
                const int8_t *x = rows[r][i].q + R::from(piece);
                constexpr int some = R::ROOM < R::HALF ? R::ROOM : R::HALF;
                for (int t = 0; t < R::HALF; t += some) {
                    Columns first[GROUPS], last[GROUPS];
                    dot<some>(q, t, x + 8 * t, first);
                    dot<some>(q, R::HALF + t, x + 8 * t + R::BETWEEN, last);
                    for (int g = 0; g < GROUPS; g++) all[r][g] = R::add(all[r][g], first[g], last[g], scale[g]);
                }
            }
        }
        const Factors<W> factors(at, scales);
        for (int r = 0; r < N; r++)
            factors.add(R::columns(all[r]), rows[r][i], sums[r * strips.blocks + i], products[r], beneath[r]);
        for (const W *&block : at) block++;
    }
    for (int r = 0; r < N; r++) strips.store(R::LEAST ? minus(products[r], beneath[r]) : products[r], to[r]);
}

// The same of blocks of 32 values.
template <int N, class W>
void multiply_columns(const Strips<W> &strips, const RowOf32<W> *const *rows, const typename Read<W>::Sums *sums, float *const *to) {
    Floats all[N];
    for (int r = 0; r < N; r++) all[r] = no_floats();
    const W *at[PLACES<W>];
    strips.begins_at(at);
    for (int64_t i = 0; i < strips.blocks; i++) {
        const Block<W> block(at);
        for (const W *place : at)
            if (N > 1) read_ahead(place + BLOCKS_AHEAD, sizeof(W));
            else read_ahead<ONCE>((const char *)place + BYTES_AHEAD_OF_ONE, sizeof(W));
        for (int r = 0; r < N; r++) {
            const auto &of_row = sums[r * strips.blocks + i];
            const Whole sum = plus(dots<4, Read<W>::SIGNED>(block.q, rows[r][i].q), of_row.too_much);
            all[r] = added<W>(all[r], sum, block.scales, block.least, of_row);
        }
        for (const W *&place : at) place++;
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
    const auto strips = [&](int64_t c) {
        return Strips<W>{w + c / each * blocks, blocks, c, apart, (int)((to_end - c + apart - 1) / apart)};
    };
    for (int64_t c = from; c < from + apart; c += each)
        if constexpr (N) multiply_columns<N>(strips(c), rows, sums, to);
        else c += multiply_many(strips(c), strips(c + each < from + apart ? c + each : c), n, rows, sums, to) * each;
}

// The same of `n` rows, at most `N`.
template <int N, class W, class Row>
INLINE void multiply_few(const W *w, int64_t from, int64_t columns, int64_t blocks, int n, const Row *const *rows, float *const *to) {
    if (n == N) multiply_rows<N>(w, from, columns, blocks, n, rows, to);
    else if constexpr (N > 1) multiply_few<N - 1>(w, from, columns, blocks, n, rows, to);
}

// How many of so many rows are multiplied together.
template <class W> INLINE int rows_together(int64_t rows) {
    using R = Read<W>;
    if (rows < FROM_MANY) return (int)(rows < R::AT_ONCE ? rows : R::AT_ONCE);
    return (int)(rows < MANY ? rows : MANY) / R::TOGETHER * R::TOGETHER;
}

// `n` rows times the columns `from` ... `to`, multiples of eight; `row_at(i, row, out)` says where row `i` is, and where
// its results belong.
template <class W, class At> void multiply_repacked(const W *w, int64_t from, int64_t to, int64_t blocks, int64_t n, At row_at) {
    const int64_t at_once = rows_together<W>(n) == n ? to - from : 2 * COLUMNS;
    for (; from < to; from += at_once) {
        const int64_t columns = to - from < at_once ? to - from : at_once;
        for (int64_t i = 0; i < n;) {
            const int some = rows_together<W>(n - i);
            const typename Read<W>::Row *rows[MANY];
            float *out[MANY];
            for (int r = 0; r < some; r++) row_at(i + r, rows[r], out[r]);
            i += some;
            if (some <= Read<W>::AT_ONCE) multiply_few<Read<W>::AT_ONCE>(w, from, columns, blocks, some, rows, out);
            else if constexpr (FROM_MANY < NEVER) multiply_rows<0>(w, from, columns, blocks, some, rows, out);
        }
    }
}

}  // namespace
