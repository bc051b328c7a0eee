// Weights, or keys and values, of 16 bits.

#pragma once

#include "formats.h"

namespace {

// Values of 16 bits: rows up to that long are converted beforehand; weights up to that long are fetched so many rows
// ahead; and so many lie in a line of the processor's cache.
constexpr int64_t CONVERTED = 8192, SHORT = 256, AHEAD = 8, LINE = 32;

// Vectors of the library's dot product, which depend on what it was compiled for, and how many rows are multiplied at a
// time: a row has four sums, and all of them should lie in registers.
struct Narrow {
    using type = __m256;
    static constexpr int size = 8, rows = 3;
    static METHOD type zero() { return _mm256_setzero_ps(); }
    static METHOD type read(const half *h) { return _mm256_cvtph_ps(load_half(h)); }
    static METHOD type read(const float *f) { return _mm256_loadu_ps(f); }
    static METHOD type add(type a, type b) { return _mm256_add_ps(a, b); }
    static METHOD type add_product(type a, type b, type c) { return _mm256_fmadd_ps(a, b, c); }
    static METHOD void write(float *f, type x) { _mm256_storeu_ps(f, x); }
    // The sums of four vectors.
    static METHOD __m128 sums(type a, type b, type c, type d) {
        return _mm_hadd_ps(_mm_hadd_ps(halved(a), halved(b)), _mm_hadd_ps(halved(c), halved(d)));
    }
    static METHOD __m128 halved(type x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
};
#if defined(__AVX512F__)
struct Wide {
    using type = __m512;
    static constexpr int size = 16, rows = 4;
    static METHOD type zero() { return _mm512_setzero_ps(); }
    static METHOD type read(const half *h) { return _mm512_cvtph_ps(load(h)); }
    static METHOD type read(const float *f) { return _mm512_loadu_ps(f); }
    static METHOD type add(type a, type b) { return _mm512_add_ps(a, b); }
    static METHOD type add_product(type a, type b, type c) { return _mm512_fmadd_ps(a, b, c); }
    static METHOD void write(float *f, type x) { _mm512_storeu_ps(f, x); }
    // In the order of _mm512_reduce_add_ps.
    static METHOD __m128 sums(type a, type b, type c, type d) {
        const type ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        const type cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        type four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
        four = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
        four = _mm512_add_ps(four, _mm512_permute_ps(four, 0xb1));
        const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, four));
    }
};
#else
using Wide = Narrow;
#endif

INLINE float value(float f) { return f; }

// M rows of weights, so that their vectors are summed together. `rows`: as they are or, if not too long, converted.
template <class V, int M, int N, class T>
METHOD void multiply_values(const Part &p, int64_t column, const T *const *rows, float *const *to) {
    typename V::type sums[N][4];
    const half *w[M];
    int64_t i = 0;
    for (int c = 0; c < M; c++) {
        w[c] = (const half *)(p.weights + (column + c) * p.pitch);
        typename V::type parts[N][4];
        for (int r = 0; r < N; r++)
            for (int j = 0; j < 4; j++) parts[r][j] = V::zero();
        for (i = 0; i + 4 * V::size <= p.blocks; i += 4 * V::size)
            for (int j = 0; j < 4; j++) {
                const typename V::type v = V::read(w[c] + i + j * V::size);
                for (int r = 0; r < N; r++) parts[r][j] = V::add_product(v, V::read(rows[r] + i + j * V::size), parts[r][j]);
            }
        for (int r = 0; r < N; r++)
            sums[r][c] = V::add(V::add(parts[r][0], parts[r][2]), V::add(parts[r][1], parts[r][3]));
    }
    for (int r = 0; r < N; r++) {
        float four[4];
        _mm_storeu_ps(four, V::sums(sums[r][0], sums[r][M > 1 ? 1 : 0], sums[r][M > 2 ? 2 : 0], sums[r][M > 3 ? 3 : 0]));
        for (int c = 0; c < M; c++) {
            double sum = four[c];
            for (int64_t l = i; l < p.blocks; l++) sum += value(w[c][l]) * value(rows[r][l]);
            to[r][column + c] = (float)sum;
        }
    }
}
template <class V, int N, class T> METHOD void multiply_halves(const Part &p, const T *const *rows, float *const *out) {
    int64_t i = p.from;
    for (; i + 4 <= p.to; i += 4) {
        // Keys of one head among those of others: the processor does not know where the next ones are.
        for (int64_t l = 0; p.blocks <= SHORT && l < p.blocks; l += LINE)
            for (int c = 0; c < 4; c++)
                _mm_prefetch(p.weights + (i + c + AHEAD) * p.pitch + l * (int64_t)sizeof(half), _MM_HINT_T0);
        multiply_values<V, 4, N>(p, i, rows, out);
    }
    for (; i < p.to; i++) multiply_values<V, 1, N>(p, i, rows, out);
}
template <class V, int N> void multiply_halves(const Part &p, int first) {
    const half *const *rows = (const half *const *)p.rows + first;
    if (p.blocks > CONVERTED) return multiply_halves<V, N>(p, rows, p.out + first);
    auto &converted = own<float[V::rows][CONVERTED]>();
    const float *to[N];
    for (int r = 0; r < N; r++) {
        to[r] = converted[r];
        int64_t i = 0;
        for (; i + V::size <= p.blocks; i += V::size) V::write(converted[r] + i, V::read(rows[r] + i));
        for (; i < p.blocks; i++) converted[r][i] = value(rows[r][i]);
    }
    multiply_halves<V, N>(p, to, p.out + first);
}
template <class V> void halves(const Part &p, int n) {
    for (int first = 0; first < n; first += V::rows)
        switch (n - first) {
            case 1: multiply_halves<V, 1>(p, first); break;
            case 2: multiply_halves<V, 2>(p, first); break;
            case 3: multiply_halves<V, 3>(p, first); break;
            default: multiply_halves<V, V::rows>(p, first);
        }
}

}  // namespace
