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
    static METHOD float sum(type x) {
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        four = _mm_hadd_ps(four, four);
        return _mm_cvtss_f32(_mm_hadd_ps(four, four));
    }
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
    static METHOD float sum(type x) { return _mm512_reduce_add_ps(x); }
};
#else
using Wide = Narrow;
#endif

INLINE float value(float f) { return f; }

// `rows`: their values as they are or, if there are not too many, converted.
template <class V, int N, class T> METHOD void multiply_values(const half *w, int64_t k, const T *const *rows,
                                                               float *const *to, int64_t column) {
    typename V::type sums[N][4];
    for (int r = 0; r < N; r++)
        for (int j = 0; j < 4; j++) sums[r][j] = V::zero();
    int64_t i = 0;
    for (; i + 4 * V::size <= k; i += 4 * V::size)
        for (int j = 0; j < 4; j++) {
            const typename V::type weights = V::read(w + i + j * V::size);
            for (int r = 0; r < N; r++) sums[r][j] = V::add_product(weights, V::read(rows[r] + i + j * V::size), sums[r][j]);
        }
    for (int r = 0; r < N; r++) {
        double sum = V::sum(V::add(V::add(sums[r][0], sums[r][2]), V::add(sums[r][1], sums[r][3])));
        for (int64_t l = i; l < k; l++) sum += value(w[l]) * value(rows[r][l]);
        to[r][column] = (float)sum;
    }
}

template <class V, int N, class T> METHOD void multiply_halves(const Part &p, const T *const *rows, float *const *out) {
    for (int64_t i = p.from; i < p.to; i++) {
        // Keys of one head among those of others: the processor does not know where the next ones are.
        for (int64_t l = 0; p.blocks <= SHORT && l < p.blocks; l += LINE)
            _mm_prefetch(p.weights + (i + AHEAD) * p.pitch + l * (int64_t)sizeof(half), _MM_HINT_T0);
        multiply_values<V, N>((const half *)(p.weights + i * p.pitch), p.blocks, rows, out, i);
    }
}
template <class V, int N> void multiply_halves(const Part &p, int first) {
    const half *const *rows = (const half *const *)p.rows + first;
    if (p.blocks > CONVERTED) return multiply_halves<V, N>(p, rows, p.out + first);
    auto &converted = own<float[V::rows][CONVERTED]>();
    const float *to[N];
    for (int r = 0; r < N; r++) {
        to[r] = converted[r];
        for (int64_t i = 0; i < p.blocks; i++) converted[r][i] = value(rows[r][i]);
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
