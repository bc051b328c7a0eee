// Many rows times repacked weights, with 512 bits: a block is unpacked once for all rows, to four values of 16 columns in a
// vector.

#pragma once

#include "strips.h"

namespace {

constexpr int MANY = 64;  // rows at most
#ifdef WIDE

INLINE __m512i four_values(const int8_t *x) {
    int four;
    __builtin_memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}
// `EIGHT` rows times a block of 256 values.
constexpr int EIGHT = Of256Values::TOGETHER;
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
            for (int r = 0; r < EIGHT; r++) dot[r] = _mm512_dpbusd_epi32(dot[r], four[v], four_values(rows[r][i].q + 4 * v));
        for (int r = 0; r < EIGHT; r++) all[r] = _mm512_add_epi32(all[r], _mm512_mullo_epi32(dot[r], scale[s]));
    }
    for (int r = 0; r < EIGHT; r++) factors.add(all[r], rows[r][i], sums[r * blocks + i], products[r], beneath[r]);
}
// `n` rows, at most MANY, times a strip; returns whether the next one is done as well.
template <class W>
bool multiply_many(const Strips<W> &strips, const Strips<W> &, int n, const Q8_K *const *rows, const typename Read<W>::Sums *sums,
                   float *const *to) {
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
            for (const W *block : at) read_ahead<NEAR>((const char *)(block + 1) + sizeof(W) * r / n / 64 * 64, sizeof(W) * EIGHT / n);
            add_eight(four, scale, factors, rows + r, sums + r * blocks, blocks, i, products + r, beneath + r);
        }
        for (const W *&block : at) block++;
    }
    for (int r = 0; r < n; r++) strips.store(R::LEAST ? minus(products[r], beneath[r]) : products[r], to[r]);
    return false;
}

// The same of blocks of 32 values, FOUR rows at a time. A value that is read is multiplied by two strips: with one, reading took
// as long as multiplying.
constexpr int FOUR = Of32Values<0>::TOGETHER, TWO = 2;
template <class W>
bool multiply_many(const Strips<W> &first, const Strips<W> &second, int n, const RowOf32<W> *const *rows,
                   const typename Read<W>::Sums *sums, float *const *to) {
    const Strips<W> *strips[] = {&first, &second};
    Floats all[MANY][TWO];
    for (int r = 0; r < n; r++) all[r][0] = all[r][1] = no_floats();
    const W *at[TWO][PLACES<W>];
    for (int s = 0; s < TWO; s++) strips[s]->begins_at(at[s]);
    const int64_t blocks = first.blocks;
    for (int64_t i = 0; i < blocks; i++) {
        __m512i four[TWO][8];
        Floats scales[TWO], least[TWO];
        for (int s = 0; s < TWO; s++) {
            const Block<W> block(at[s]);
            for (int t = 0; t < 4; t++) {
                const Lanes lanes = lanes_of(block.q[0][t], block.q[1][t]);
                four[s][2 * t] = lanes.first;
                four[s][2 * t + 1] = lanes.second;
            }
            scales[s] = block.scales;
            least[s] = block.least;
            for (const W *&place : at[s]) read_ahead(place++ + BLOCKS_AHEAD, sizeof(W));
        }
        for (int r = 0; r < n; r += FOUR) {
            __m512i sum[FOUR][TWO];
            for (int e = 0; e < FOUR; e++) sum[e][0] = sum[e][1] = _mm512_set1_epi32(sums[(r + e) * blocks + i].too_much);
            for (int v = 0; v < 8; v++)
                for (int e = 0; e < FOUR; e++) {
                    const __m512i values = four_values(rows[r + e][i].q + 4 * v);
                    for (int s = 0; s < TWO; s++) sum[e][s] = _mm512_dpbusd_epi32(sum[e][s], four[s][v], values);
                }
            for (int e = 0; e < FOUR; e++)
                for (int s = 0; s < TWO; s++)
                    all[r + e][s] = added<W>(all[r + e][s], sum[e][s], scales[s], least[s], sums[(r + e) * blocks + i]);
        }
    }
    for (int s = 0; s < TWO; s++)
        for (int r = 0; r < n; r++) strips[s]->store(all[r][s], to[r]);
    return true;
}

#endif
}  // namespace
