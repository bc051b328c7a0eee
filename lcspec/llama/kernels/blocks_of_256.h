// Weights in blocks of 256 values.

#pragma once

#include "formats.h"

namespace {

struct Unpacked {
    __m256i q[8], scale[8];  // bytes without a sign, and the scale of each pair of them
    __m256i sign[8];         // Q3_K, IQ4_XS: bytes with the sign
    __m256i parts;           // Q6_K: scales of its 16 parts, whose values are 32 too large; Q2_K: their minima
    __m128i minima;          // Q4_K, Q5_K: of its 8 parts
};

// Scales of vectors: those of their lower halves are in the lower half of `scales`.
INLINE void spread(__m256i scales, Unpacked &to) {
    for (int j = 0; j < 8; j++)
        to.scale[j] = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)(2 * j | (2 * j + 1) << 8)));
}
// The same of scales that follow one another, as bytes.
INLINE void spread_bytes(__m128i scales, Unpacked &to) {
    const __m128i by_halves = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    spread(_mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, by_halves)), to);
}
INLINE void with_sign(__m256i q, int j, Unpacked &to) {
    to.sign[j] = q;
    to.q[j] = _mm256_sign_epi8(q, q);
}

INLINE void six_bits(const uint8_t *from, Unpacked &to) {  // 8 scales and 8 minima
    uint32_t u[3];
    __builtin_memcpy(u, from, 12);
    const uint32_t low = 0x0f0f0f0f, high = 0x30303030, six = 0x3f3f3f3f;
    const __m128i scales = _mm_set_epi32(0, 0, (int)((u[2] & low) | ((u[0] >> 2) & high)), (int)(u[0] & six));
    const __m128i minima = _mm_set_epi32(0, 0, (int)((u[2] >> 4 & low) | ((u[1] >> 2) & high)), (int)(u[1] & six));
    to.minima = _mm_cvtepu8_epi16(minima);
    spread(_mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(scales)), to);
}
INLINE void unpack(const Q4_K &b, Unpacked &to) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; j++) {
        const __m256i two = load(b.q + 32 * j);
        to.q[2 * j] = _mm256_and_si256(two, low);
        to.q[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16(two, 4), low);
    }
    six_bits(b.scales, to);
}
INLINE void unpack(const Q5_K &b, Unpacked &to) {
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16), h = load(b.h);
    for (int j = 0; j < 8; j++) {
        const __m256i two = load(b.q + 32 * (j / 2)), one = j % 2 ? _mm256_srli_epi16(two, 4) : two;
        const __m256i top = j < 4 ? _mm256_slli_epi16(h, 4 - j) : _mm256_srli_epi16(h, j - 4);
        to.q[j] = _mm256_or_si256(_mm256_and_si256(one, low), _mm256_and_si256(top, fifth));
    }
    six_bits(b.scales, to);
}
INLINE void unpack(const Q6_K &b, Unpacked &to) {
    const __m256i low = _mm256_set1_epi8(15), top = _mm256_set1_epi8(48);
    for (int j = 0; j < 2; j++) {
        const __m256i a = load(b.q + 64 * j), c = load(b.q + 64 * j + 32), h = load(b.h + 32 * j);
        const __m256i bottom[4] = {a, c, _mm256_srli_epi16(a, 4), _mm256_srli_epi16(c, 4)};
        const __m256i above[4] = {_mm256_slli_epi16(h, 4), _mm256_slli_epi16(h, 2), h, _mm256_srli_epi16(h, 2)};
        for (int l = 0; l < 4; l++)
            to.q[4 * j + l] = _mm256_or_si256(_mm256_and_si256(bottom[l], low), _mm256_and_si256(above[l], top));
    }
    spread_bytes(load_half(b.scales), to);
    to.parts = _mm256_cvtepi8_epi16(load_half(b.scales));
}
// The two bits of each value, the lower ones of Q3_K.
INLINE __m256i two_bits(const uint8_t *q, int j) {
    return _mm256_and_si256(_mm256_srli_epi16(load(q + 32 * (j / 4)), 2 * (j % 4)), _mm256_set1_epi8(3));
}
INLINE void unpack(const Q2_K &b, Unpacked &to) {
    const __m128i low = _mm_set1_epi8(15), both = load_half(b.scales);
    for (int j = 0; j < 8; j++) to.q[j] = two_bits(b.q, j);
    spread_bytes(_mm_and_si128(both, low), to);
    to.parts = _mm256_cvtepi8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), low));
}
INLINE void unpack(const Q3_K &b, Unpacked &to) {
    const __m256i one = _mm256_set1_epi8(1), four = _mm256_set1_epi8(4), h = load(b.h);
    for (int j = 0; j < 8; j++) {
        const __m256i low = two_bits(b.q, j);
        const __m256i high = _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(h, j), one), 2);
        with_sign(_mm256_sub_epi8(_mm256_or_si256(low, high), four), j, to);
    }
    uint32_t u[3];
    __builtin_memcpy(u, b.scales, 12);
    const uint32_t nibble = 0x0f0f0f0f, two = 0x03030303;
    const __m128i scales = _mm_set_epi32((int)((u[1] >> 4 & nibble) | (u[2] >> 6 & two) << 4),
                                         (int)((u[0] >> 4 & nibble) | (u[2] >> 4 & two) << 4),
                                         (int)((u[1] & nibble) | (u[2] >> 2 & two) << 4),
                                         (int)((u[0] & nibble) | (u[2] & two) << 4));
    spread_bytes(_mm_sub_epi8(scales, _mm_set1_epi8(32)), to);
}
INLINE void unpack(const IQ4_XS &b, Unpacked &to) {
    for (int j = 0; j < 8; j++) {
        with_sign(looked_up(levels_of_iq4(), b.q + 16 * j), j, to);
        const int scale = (b.low[j / 2] >> 4 * (j % 2) & 15) | (b.high >> 2 * j & 3) << 4;
        to.scale[j] = _mm256_set1_epi16((short)(scale - 32));
    }
}

// Weights with minima have them summed with their values (Q2_K, for 16 values each) or apart (for 32).
struct Default { static constexpr bool minima = false, apart = false, shifted = false, has_sign = true; };
template <class W> struct Traits : Default {};
template <> struct Traits<Q2_K> : Default { static constexpr bool minima = true, has_sign = false; };
template <> struct Traits<Q4_K> : Traits<Q2_K> { static constexpr bool apart = true; };
template <> struct Traits<Q5_K> : Traits<Q4_K> {};
template <> struct Traits<Q6_K> : Default { static constexpr bool shifted = true, has_sign = false; };

// Rows side by side, block after block: their values, their scales, and sums of 16 values, or of 32 for minima.
struct Large { __m256i q[BLOCKS * ROWS], sums[BLOCKS / 8 * ROWS]; float d[BLOCKS / 8 * ROWS]; };

template <class W, int N> METHOD void read_rows(Large &to, const char *const *rows, int64_t blocks) {
    for (int r = 0; r < N; r++)
        for (int64_t i = 0, at = r; i < blocks; i++, at += N) {
            const Q8_K &block = ((const Q8_K *)rows[r])[i];
            for (int j = 0; j < 8; j++) to.q[8 * at + j] = load(block.q + 32 * j);
            const __m256i sums = load(block.sums), two = _mm256_permute2x128_si256(sums, sums, 1);
            to.sums[at] = Traits<W>::apart ? _mm256_hadd_epi16(sums, two) : sums;
            to.d[at] = block.d;
        }
}

// The dot products of Q4_K and Q5_K sum minima in two ways.
template <class W> struct Minima {
    METHOD void add(__m256, const Unpacked &, __m256i) {}
    METHOD float add_to(float sum) const { return sum; }
};
template <> struct Minima<Q4_K> {
    __m128 all = _mm_setzero_ps();
    METHOD void add(__m256 scale, const Unpacked &w, __m256i of_row) {
        const __m128i products = _mm_madd_epi16(w.minima, _mm256_castsi256_si128(of_row));
        all = _mm_fnmadd_ps(_mm256_castps256_ps128(scale), _mm_cvtepi32_ps(products), all);
    }
    METHOD float add_to(float sum) const { return sum + sum_of(all); }
};
template <> struct Minima<Q5_K> {
    float all = 0;
    METHOD void add(__m256 scale, const Unpacked &w, __m256i of_row) {
        __m128i four = _mm_madd_epi16(w.minima, _mm256_castsi256_si128(of_row));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        all = __builtin_fmaf(-_mm256_cvtss_f32(scale), (float)_mm_cvtsi128_si32(four), all);
    }
    METHOD float add_to(float sum) const { return sum + all; }
};
INLINE float minimum(const Q2_K &b) { return value(b.m); }
INLINE float minimum(const Q4_K &b) { return value(b.m); }
INLINE float minimum(const Q5_K &b) { return value(b.m); }

template <class W, int N, int M>
METHOD void multiply_blocks(const W *const *w, int64_t blocks, const Large &rows, float *const *to, int64_t column,
                            int64_t) {
    static_assert(M == 1, "several rows of these weights at a time are no faster");
    __m256 sums[N];
    Minima<W> minima[N];
    for (int r = 0; r < N; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        Unpacked u;
        unpack(w[0][i], u);
        const float d = value(w[0][i].d), least = Traits<W>::minima ? minimum(w[0][i]) : 0;
        for (int r = 0; r < N; r++) {
            const __m256i *q = rows.q + 8 * (i * N + r), sums_of_row = rows.sums[i * N + r];
            __m256i even, odd;
            for (int j = 0; j < 8; j++) {
                const __m256i values = Traits<W>::has_sign ? _mm256_sign_epi8(q[j], u.sign[j]) : q[j];
                const __m256i products = _mm256_maddubs_epi16(u.q[j], values);
                __m256i &half_of_them = j % 2 ? odd : even;
                half_of_them = j < 2 ? _mm256_madd_epi16(products, u.scale[j])
                                     : add_products(half_of_them, products, u.scale[j]);
            }
            __m256i all = _mm256_add_epi32(even, odd);
            if (Traits<W>::shifted)
                all = _mm256_sub_epi32(all, _mm256_slli_epi32(_mm256_madd_epi16(sums_of_row, u.parts), 5));
            const float *d_of_row = rows.d + i * N + r;
            const __m256 least_of_row = scale<N>(least, d_of_row);
            if (Traits<W>::minima && !Traits<W>::apart) {
                const __m256i products = _mm256_madd_epi16(u.parts, sums_of_row);
                sums[r] = _mm256_fnmadd_ps(least_of_row, _mm256_cvtepi32_ps(products), sums[r]);
            }
            sums[r] = _mm256_fmadd_ps(scale<N>(d, d_of_row), _mm256_cvtepi32_ps(all), sums[r]);
            if (Traits<W>::apart) minima[r].add(least_of_row, u, sums_of_row);
        }
    }
    for (int r = 0; r < N; r++) to[r][column] = minima[r].add_to(sum_of(sums[r]));
}

}  // namespace
