// Columns of repacked weights that are multiplied together.

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
        else sum = minus_times<R::TWICE>(sum, below);  // so much the values are too large
        products = add_product(products, sum, times(d, row.d));
    }
};

template <class W> using RowOf32 = typename Read<W>::RowOf32;  // of those types alone
// Blocks of 32 values, at so many places. They are read ahead by BLOCKS_AHEAD, for a single row by so many bytes.
constexpr int BLOCKS_AHEAD = 24, BYTES_AHEAD_OF_ONE = 256;
template <class W> struct Block {
    using R = Read<W>;
    Columns q[GROUPS][4];
    Floats scales, least;

    METHOD explicit Block(const W *const *at) {
        constexpr int each = PLACES<W> / GROUPS;
        __m256 d[GROUPS], m[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            R::unpack(at + each * g, q[g]);
            d[g] = R::scales(at + each * g);
            if constexpr (R::LEAST) m[g] = R::least(at + each * g);
        }
        scales = joined(d);
        if constexpr (R::LEAST) least = joined(m);
    }
};
// The sum of a row's products with such a block is added to what there is.
template <class W> INLINE Floats added(Floats all, Whole sum, Floats scales, Floats least, const typename Read<W>::Sums &of_row) {
    all = add_product(all, sum, times(scales, of_row.d));
    if constexpr (Read<W>::LEAST) all = add_product(all, least, of_row.s);
    return all;
}

}  // namespace
