// A few rows (tokens) times a matrix of ggml, each row with the bits that it has alone.
//
// ggml multiplies a single row by a dot product for every row of weights (ggml-cpu, arch/x86/quants.c), and several by
// the same function again and again, or by code that sums in another order. Here every block of weights is unpacked
// once, for up to eight rows, whose values are brought into order once for all weights. The sums of a row are those of
// the dot product: its products are whole numbers, which any order adds up to the same, and its eight partial sums in
// floating point get one fused multiply-add for each block, in the order of the blocks. few_rows.py compiles this for
// the processor it runs on and compares the bits.
//
// The formats are those of ggml-common.h.

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define METHOD inline __attribute__((always_inline))

namespace {

constexpr int ROWS = 8;          // that share what was unpacked
constexpr int BLOCKS = 1024;     // of 32 values that a row may have: they lie on the stack
constexpr int64_t COLUMNS = 64;  // rows of weights that stay in the processor's cache for all rows
// Parts of the work for each thread, unless they have fewer bytes of weights than that: at the end of each is lost what
// the processor read ahead.
constexpr int PARTS = 4;
constexpr int64_t LEAST = 256 << 10;
// Values of 16 bits: rows up to that long are converted beforehand; weights up to that long are fetched so many rows
// ahead; and so many lie in a line of the processor's cache.
constexpr int64_t CONVERTED = 8192, SHORT = 256, AHEAD = 8, LINE = 32;

// More rows than that are multiplied faster by the library's kernels for prompts, measured on AVX2 (Zen 3's set) and
// AVX-512 (Zen 4). It has none for Q4_1 and Q5_1, and those for blocks of 256 values are made for AVX-512. Values of 16
// bits are the attention's: there all pieces of a prompt, of whatever length, should have the same sums.
constexpr int64_t ANY = INT64_MAX, FEW = 24;
#if defined(__AVX512VNNI__)
constexpr int64_t FEW_LARGE = FEW;
#else
constexpr int64_t FEW_LARGE = ANY;
#endif

using half = uint16_t;
struct Q4_0 { half d; uint8_t q[16]; };
struct Q4_1 { half d, m; uint8_t q[16]; };
struct Q5_0 { half d; uint8_t h[4], q[16]; };
struct Q5_1 { half d, m; uint8_t h[4], q[16]; };
struct Q8_0 { half d; int8_t q[32]; };
struct Q8_1 { half d, s; int8_t q[32]; };
struct Q3_K { uint8_t h[32], q[64], scales[12]; half d; };
struct IQ4_XS { half d; uint16_t high; uint8_t low[4], q[128]; };
struct Q4_K { half d, m; uint8_t scales[12], q[128]; };
struct Q5_K { half d, m; uint8_t scales[12], h[32], q[128]; };
struct Q6_K { uint8_t q[128], h[64]; int8_t scales[16]; half d; };
struct Q8_K { float d; int8_t q[256]; int16_t sums[16]; };

INLINE float value(half h) { return _cvtsh_ss(h); }
INLINE __m256i load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE __m128i load_half(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

INLINE float sum_of(__m128 x) {
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
INLINE float sum_of(__m256 x) { return sum_of(_mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x))); }

// Eight sums of four products each, added to `sum`: bytes without a sign times bytes with one.
INLINE __m256i add_byte_products(__m256i sum, __m256i u, __m256i s) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sum, u, s);
#elif defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, u, s);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
#endif
}
// The same of two products of 16 bits each.
INLINE __m256i add_products(__m256i sum, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpwssd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
}

// The scale of a block of weights times that of a row's block; a single row's in fewer instructions.
template <int N> METHOD __m256 scale(float weights, const float *row) {
    if (N == 1) return _mm256_set1_ps(weights * row[0]);
    return _mm256_mul_ps(_mm256_set1_ps(weights), _mm256_broadcast_ss(row));
}

// ---- Blocks of 32 values

INLINE __m256i nibbles(const uint8_t *q) {
    __m128i two = load_half(q);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(two, 4), two), _mm256_set1_epi8(15));
}
// A byte for each of 32 bits: `set` or `clear`.
INLINE __m256i bits(const uint8_t *h, char set, char clear) {
    int four;
    __builtin_memcpy(&four, h, 4);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return _mm256_mask_blend_epi8((__mmask32)four, _mm256_set1_epi8(clear), _mm256_set1_epi8(set));
#else
    const __m256i own = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
    __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own), own);
    return _mm256_blendv_epi8(_mm256_set1_epi8(clear), _mm256_set1_epi8(set), is_set);
#endif
}
INLINE __m256i unpack(const Q4_0 &b) { return _mm256_sub_epi8(nibbles(b.q), _mm256_set1_epi8(8)); }
INLINE __m256i unpack(const Q4_1 &b) { return nibbles(b.q); }
INLINE __m256i unpack(const Q5_0 &b) { return _mm256_or_si256(nibbles(b.q), bits(b.h, 0, (char)0xf0)); }
INLINE __m256i unpack(const Q5_1 &b) { return _mm256_or_si256(nibbles(b.q), bits(b.h, 16, 0)); }
INLINE __m256i unpack(const Q8_0 &b) { return load(b.q); }

// What the values of a row are rounded to for these weights. Those with a minimum have Q8_1, and no signs.
template <class W> struct Rounded { using type = Q8_0; static constexpr bool minimum = false; };
template <> struct Rounded<Q4_1> { using type = Q8_1; static constexpr bool minimum = true; };
template <> struct Rounded<Q5_1> { using type = Q8_1; static constexpr bool minimum = true; };

INLINE float minimum(const Q4_1 &b) { return value(b.m); }
INLINE float minimum(const Q5_1 &b) { return value(b.m); }
template <class W> METHOD float minimum(const W &) { return 0; }

// Weights with a sign are multiplied by values without one, which are taken as 128 larger. Without VNNI sums of two
// products are kept in 16 bits, which is not enough for Q8_0.
template <class W> constexpr bool larger_by_128 = !Rounded<W>::minimum;
#if !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
template <> constexpr bool larger_by_128<Q8_0> = false;
#endif

// Rows side by side, block after block: their values, and their scales and sums in 32 bits.
struct Small { __m256i q[BLOCKS * ROWS]; float d[BLOCKS * ROWS], s[BLOCKS * ROWS + ROWS]; };

template <class W, int N> METHOD void read_rows(Small &to, const char *const *rows, int64_t blocks) {
    using V = typename Rounded<W>::type;
    const __m256i larger = _mm256_set1_epi8(larger_by_128<W> ? (char)128 : 0);
    for (int r = 0; r < N; r++)
        for (int64_t i = 0, at = r; i < blocks; i++, at += N) {
            const V &block = ((const V *)rows[r])[i];
            to.q[at] = _mm256_xor_si256(load(block.q), larger);
            to.d[at] = value(block.d);
            if (Rounded<W>::minimum) to.s[at] = value(((const half *)&block)[1]);
        }
    _mm256_storeu_ps(to.s + blocks * N, _mm256_setzero_ps());
}

template <class W, int N> METHOD void multiply_blocks(const W *w, int64_t blocks, const Small &rows, float *const *to, int64_t column) {
    __m256 sums[N], rest = _mm256_setzero_ps();
    for (int r = 0; r < N; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        const __m256i q = unpack(w[i]), none = _mm256_setzero_si256();
        __m256i start = none, size = q;
        if (larger_by_128<W>) start = _mm256_sub_epi32(none, add_byte_products(none, _mm256_set1_epi8((char)128), q));
        else if (!Rounded<W>::minimum) size = _mm256_sign_epi8(q, q);
        const float d = value(w[i].d);
        if (Rounded<W>::minimum)
            rest = _mm256_fmadd_ps(_mm256_set1_ps(minimum(w[i])), _mm256_loadu_ps(rows.s + i * N), rest);
        for (int r = 0; r < N; r++) {
            const __m256i v = rows.q[i * N + r];
            const __m256i products = larger_by_128<W> ? add_byte_products(start, v, q)
                                     : Rounded<W>::minimum ? add_byte_products(none, q, v)
                                                           : add_byte_products(none, size, _mm256_sign_epi8(v, q));
            sums[r] = _mm256_fmadd_ps(scale<N>(d, rows.d + i * N + r), _mm256_cvtepi32_ps(products), sums[r]);
        }
    }
    float more[ROWS];
    _mm256_storeu_ps(more, rest);
    for (int r = 0; r < N; r++) to[r][column] = Rounded<W>::minimum ? sum_of(sums[r]) + more[r] : sum_of(sums[r]);
}

// ---- Blocks of 256 values

struct Unpacked {
    __m256i q[8], scale[8];  // bytes without a sign, and the scale of each pair of them
    __m256i sign[8];         // Q3_K, IQ4_XS: bytes with the sign
    __m256i shift;           // Q6_K: scales of its 16 parts, whose values are 32 too large
    __m128i minima;          // Q4_K, Q5_K: of its 8 parts
};

// 16 scales, of half a vector each.
INLINE void halves(__m128i scales, Unpacked &to) {
    const long long eight = 0x0101010101010101;
    for (int j = 0; j < 8; j++)
        to.scale[j] = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, _mm_set_epi64x(eight * (2 * j + 1), eight * 2 * j)));
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
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(scales));
    to.minima = _mm_cvtepu8_epi16(minima);
    for (int j = 0; j < 8; j++)
        to.scale[j] = _mm256_shuffle_epi8(twice, _mm256_set1_epi16((short)(2 * j | (2 * j + 1) << 8)));
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
    halves(load_half(b.scales), to);
    to.shift = _mm256_cvtepi8_epi16(load_half(b.scales));
}
INLINE void unpack(const Q3_K &b, Unpacked &to) {
    const __m256i one = _mm256_set1_epi8(1), three = _mm256_set1_epi8(3), four = _mm256_set1_epi8(4), h = load(b.h);
    for (int j = 0; j < 8; j++) {
        const __m256i low = _mm256_and_si256(_mm256_srli_epi16(load(b.q + 32 * (j / 4)), 2 * (j % 4)), three);
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
    halves(_mm_sub_epi8(scales, _mm_set1_epi8(32)), to);
}
INLINE void unpack(const IQ4_XS &b, Unpacked &to) {
    const __m128i levels = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    for (int j = 0; j < 8; j++) {
        with_sign(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), nibbles(b.q + 16 * j)), j, to);
        const int scale = (b.low[j / 2] >> 4 * (j % 2) & 15) | (b.high >> 2 * j & 3) << 4;
        to.scale[j] = _mm256_set1_epi16((short)(scale - 32));
    }
}

template <class W> struct Traits { static constexpr bool minima = false, shifted = false, has_sign = true; };
template <> struct Traits<Q4_K> { static constexpr bool minima = true, shifted = false, has_sign = false; };
template <> struct Traits<Q5_K> { static constexpr bool minima = true, shifted = false, has_sign = false; };
template <> struct Traits<Q6_K> { static constexpr bool minima = false, shifted = true, has_sign = false; };

// Rows side by side, block after block: their values, their scales, and sums of 16 values, or of 32 for minima.
struct Large { __m256i q[BLOCKS * ROWS], sums[BLOCKS / 8 * ROWS]; float d[BLOCKS / 8 * ROWS]; };

template <class W, int N> METHOD void read_rows(Large &to, const char *const *rows, int64_t blocks) {
    for (int r = 0; r < N; r++)
        for (int64_t i = 0, at = r; i < blocks; i++, at += N) {
            const Q8_K &block = ((const Q8_K *)rows[r])[i];
            for (int j = 0; j < 8; j++) to.q[8 * at + j] = load(block.q + 32 * j);
            const __m256i sums = load(block.sums), two = _mm256_permute2x128_si256(sums, sums, 1);
            to.sums[at] = Traits<W>::minima ? _mm256_hadd_epi16(sums, two) : sums;
            to.d[at] = block.d;
        }
}

// The dot products of Q4_K and Q5_K sum minima in two ways.
template <class W> struct Minima {
    METHOD void add(__m256, const Unpacked &, __m256i) {}
    METHOD float sum() const { return 0; }
};
template <> struct Minima<Q4_K> {
    __m128 sums = _mm_setzero_ps();
    METHOD void add(__m256 scale, const Unpacked &w, __m256i of_row) {
        const __m128i products = _mm_madd_epi16(w.minima, _mm256_castsi256_si128(of_row));
        sums = _mm_fmadd_ps(_mm256_castps256_ps128(scale), _mm_cvtepi32_ps(products), sums);
    }
    METHOD float sum() const { return sum_of(sums); }
};
template <> struct Minima<Q5_K> {
    float all = 0;
    METHOD void add(__m256 scale, const Unpacked &w, __m256i of_row) {
        __m128i four = _mm_madd_epi16(w.minima, _mm256_castsi256_si128(of_row));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        all = __builtin_fmaf(_mm256_cvtss_f32(scale), (float)_mm_cvtsi128_si32(four), all);
    }
    METHOD float sum() const { return all; }
};
INLINE float minimum(const Q4_K &b) { return value(b.m); }
INLINE float minimum(const Q5_K &b) { return value(b.m); }

template <class W, int N> METHOD void multiply_blocks(const W *w, int64_t blocks, const Large &rows, float *const *to, int64_t column) {
    __m256 sums[N];
    Minima<W> minima[N];
    for (int r = 0; r < N; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        Unpacked u;
        unpack(w[i], u);
        const float d = value(w[i].d), least = Traits<W>::minima ? -minimum(w[i]) : 0;
        for (int r = 0; r < N; r++) {
            const __m256i *q = rows.q + 8 * (i * N + r), sums_of_row = rows.sums[i * N + r];
            __m256i even = _mm256_setzero_si256(), odd = even;
            for (int j = 0; j < 8; j++) {
                const __m256i values = Traits<W>::has_sign ? _mm256_sign_epi8(q[j], u.sign[j]) : q[j];
                __m256i &half_of_them = j % 2 ? odd : even;
                half_of_them = add_products(half_of_them, _mm256_maddubs_epi16(u.q[j], values), u.scale[j]);
            }
            __m256i all = _mm256_add_epi32(even, odd);
            if (Traits<W>::shifted)
                all = _mm256_sub_epi32(all, _mm256_slli_epi32(_mm256_madd_epi16(sums_of_row, u.shift), 5));
            const float *d_of_row = rows.d + i * N + r;
            sums[r] = _mm256_fmadd_ps(scale<N>(d, d_of_row), _mm256_cvtepi32_ps(all), sums[r]);
            if (Traits<W>::minima) minima[r].add(scale<N>(least, d_of_row), u, sums_of_row);
        }
    }
    for (int r = 0; r < N; r++) to[r][column] = Traits<W>::minima ? sum_of(sums[r]) + minima[r].sum() : sum_of(sums[r]);
}

// ---- Values of 16 bits

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

// ---- Matrices

// Some rows of weights, and at most ROWS rows.
struct Part {
    const char *weights;
    int64_t from, to, pitch, blocks;
    const char *rows[ROWS];
    float *out[ROWS];
};

template <class W, class Read, int N> void multiply_part(const Part &p) {
    Read rows;
    read_rows<W, N>(rows, p.rows, p.blocks);
    for (int64_t i = p.from; i < p.to; i++)
        multiply_blocks<W, N>((const W *)(p.weights + i * p.pitch), p.blocks, rows, p.out, i);
}
template <class W, class Read> void blocks(const Part &p, int n) {
    switch (n) {
        case 1: return multiply_part<W, Read, 1>(p);
        case 2: return multiply_part<W, Read, 2>(p);
        case 3: return multiply_part<W, Read, 3>(p);
        case 4: return multiply_part<W, Read, 4>(p);
        case 5: return multiply_part<W, Read, 5>(p);
        case 6: return multiply_part<W, Read, 6>(p);
        case 7: return multiply_part<W, Read, 7>(p);
        default: return multiply_part<W, Read, 8>(p);
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
    float converted[N][CONVERTED];
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

// ---- Q4_0, as the library repacks it: blocks of eight columns, eight bytes of each in turn, and nibbles with a sign

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

// A type of weights and what rows are rounded to, both as numbers of enum ggml_type.
struct Kind {
    int weights, values, block, size, value_size;  // `block`: values in one
    int64_t few;                                  // more rows than that are multiplied faster by the library
    void (*multiply)(const Part &, int);
    bool use;
};
Kind kinds[] = {
    {1, 1, 1, sizeof(half), sizeof(half), 1, halves<Narrow>, false},
    {2, 8, 32, sizeof(Q4_0), sizeof(Q8_0), FEW, blocks<Q4_0, Small>, false},
    {3, 9, 32, sizeof(Q4_1), sizeof(Q8_1), ANY, blocks<Q4_1, Small>, false},
    {6, 8, 32, sizeof(Q5_0), sizeof(Q8_0), FEW, blocks<Q5_0, Small>, false},
    {7, 9, 32, sizeof(Q5_1), sizeof(Q8_1), ANY, blocks<Q5_1, Small>, false},
    {8, 8, 32, sizeof(Q8_0), sizeof(Q8_0), FEW, blocks<Q8_0, Small>, false},
    {11, 15, 256, sizeof(Q3_K), sizeof(Q8_K), FEW_LARGE, blocks<Q3_K, Large>, false},
    {12, 15, 256, sizeof(Q4_K), sizeof(Q8_K), FEW_LARGE, blocks<Q4_K, Large>, false},
    {13, 15, 256, sizeof(Q5_K), sizeof(Q8_K), FEW_LARGE, blocks<Q5_K, Large>, false},
    {14, 15, 256, sizeof(Q6_K), sizeof(Q8_K), FEW_LARGE, blocks<Q6_K, Large>, false},
    {23, 15, 256, sizeof(IQ4_XS), sizeof(Q8_K), FEW_LARGE, blocks<IQ4_XS, Large>, false},
};
const Kind *kind_of(int weights) {
    for (const Kind &kind : kinds)
        if (kind.use && kind.weights == weights) return &kind;
    return nullptr;
}

}  // namespace

extern "C" {

struct ggml_compute_params { int ith, nth; size_t wsize; void *wdata; void *threadpool; };
struct ggml_tensor {  // up to its values
    int type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op, op_params[16], flags;
    ggml_tensor *src[10], *view_src;
    size_t view_offset;
    void *data;
};
struct Chosen { int32_t slot, row; };  // of an expert's rows
using Tiled = bool(const ggml_compute_params *, ggml_tensor *out);
using TiledExperts = bool(const ggml_compute_params *, ggml_tensor *out, int64_t expert, int64_t n, const Chosen *, char *);
using Multiply = bool(const ggml_compute_params *, int64_t m, int64_t n, int64_t k, const void *weights, int64_t pitch,
                      const void *rows, int64_t stride, void *out, int64_t next, int weights_type, int values_type,
                      int out_type);

}

namespace {

// The library's: its kernels for prompts, and how its threads share work.
Multiply *library_multiply;
Tiled *library_tiled;
TiledExperts *library_experts;
void (*set_part)(void *pool, int part);
int (*next_part)(void *pool, int count);
void (*wait_for_all)(void *pool);
// What stands in for its function for repacked Q4_0 otherwise: the same, row by row.
void (*q4_0_by_rows)(int n, float *out, size_t next, const void *weights, const void *values, int nr, int nc);

// `row_at(i, row, out)` says where row `i` of `n` is, and where its results belong.
template <class At> void multiply(const Kind &kind, Part p, int64_t n, At row_at) {
    const int64_t end = p.to, columns = n <= ROWS ? end - p.from : COLUMNS;
    for (; p.from < end; p.from = p.to) {
        p.to = p.from + columns < end ? p.from + columns : end;
        for (int64_t row = 0; row < n; row += ROWS) {
            const int some = (int)(n - row < ROWS ? n - row : ROWS);
            for (int r = 0; r < some; r++) row_at(row + r, p.rows[r], p.out[r]);
            kind.multiply(p, some);
        }
    }
}
bool fits(const Kind *kind, int64_t k) { return kind && (kind->block == 1 || k * kind->block <= 32 * BLOCKS); }

}  // namespace

extern "C" {

// Functions of the library, in the order of their declaration above, and whether its vectors have 512 bits.
void few_rows_init(Multiply *sgemm, Tiled *tiled, TiledExperts *experts, void (*set)(void *, int),
                   int (*next)(void *, int), void (*wait)(void *), int (*has_wide)()) {
    library_multiply = sgemm;
    library_tiled = tiled;
    library_experts = experts;
    set_part = set;
    next_part = next;
    wait_for_all = wait;
    if (has_wide()) kinds[0].multiply = halves<Wide>;
}

void few_rows_q4_0_init(void (*by_rows)(int, float *, size_t, const void *, const void *, int, int)) {
    q4_0_by_rows = by_rows;
}

// Take weights of this type from now on, or leave them to the library.
void few_rows_use(int weights, bool use) {
    for (Kind &kind : kinds)
        if (kind.weights == weights) kind.use = use;
}

// Stands in for the library's llamafile_sgemm where every row must have the bits that it has alone: `n` rows of `k` blocks
// times `m` rows of weights. False: not done; the library then multiplies row by row.
bool few_rows_exact(const ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *weights, int64_t pitch,
                    const void *rows, int64_t stride, void *out, int64_t next, int weights_type, int values_type,
                    int out_type) {
    const Kind *kind = kind_of(weights_type);
    if (!fits(kind, k) || values_type != kind->values || out_type != 0) return false;
    pitch *= kind->size;
    stride *= kind->value_size;
    const int64_t nth = params->nth, most = nth == 1 ? 1 : PARTS * nth, fit = m * pitch / LEAST;
    const int64_t parts = fit < nth ? nth : fit < most ? fit : most, size = (m + parts - 1) / parts;
    const bool shared = parts > nth;
    if (shared) {
        if (params->ith == 0) set_part(params->threadpool, params->nth);
        wait_for_all(params->threadpool);
    }
    for (int64_t part = params->ith; part < parts; part = shared ? next_part(params->threadpool, 1) : parts) {
        const int64_t end = size * (part + 1) < m ? size * (part + 1) : m;
        multiply(*kind, {(const char *)weights, size * part, end, pitch, k, {}, {}}, n,
                 [&](int64_t i, const char *&row, float *&to) {
                     row = (const char *)rows + i * stride;
                     to = (float *)out + i * next;
                 });
    }
    if (shared) wait_for_all(params->threadpool);
    return true;
}

// The same where bits do not matter: whatever is faster.
bool few_rows_fast(const ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *weights, int64_t pitch,
                   const void *rows, int64_t stride, void *out, int64_t next, int weights_type, int values_type,
                   int out_type) {
    const Kind *kind = kind_of(weights_type);
    Multiply *faster = kind && n <= kind->few ? few_rows_exact : library_multiply;
    return faster(params, m, n, k, weights, pitch, rows, stride, out, next, weights_type, values_type, out_type);
}

// Stands in for the library's ggml_gemm_q4_0_8x8_q8_0, whose rows lie one after the other (see repacked_rows.py): `n` values
// of `nr` rows, a multiple of four, times `nc` columns of weights; `next`: from a row's results to those of the next one.
void few_rows_q4_0(int n, float *out, size_t next, const void *weights, const void *values, int nr, int nc) {
    const int64_t blocks = n / 32;
    if (blocks > BLOCKS) return q4_0_by_rows(n, out, next, weights, values, nr, nc);
    for (int row = 0; row < nr; row += 4) {
        const Q8_0 *rows = (const Q8_0 *)values + row * blocks;
        RowScales scales;
        for (int64_t i = 0; i < blocks; i++)
            for (int r = 0; r < 4; r++) {
                const Q8_0 &block = rows[r * blocks + i];
                int sum = 0;
                for (int j = 0; j < 32; j++) sum += block.q[j];
                scales.d[i][r] = value(block.d);
                scales.s[i][r] = (float)(-8 * sum);  // the weights' nibbles are taken as 8 larger
            }
        for (int column = 0; column < nc; column += 8)
            multiply_columns<4>((const Q4_0x8 *)weights + column / 8 * blocks, blocks, rows, scales,
                                out + row * next + column, (int64_t)next);
    }
}

// Stands in for the library's ggml_compute_forward_mul_mat_tiled, which it tries first.
bool few_rows_tiled(const ggml_compute_params *params, ggml_tensor *out) {
    const Kind *kind = kind_of(out->src[0]->type);
    return (!kind || out->ne[1] > kind->few) && library_tiled(params, out);
}

// Stands in for the library's ggml_compute_forward_mul_mat_id_tiled: the `n` rows that go to an expert, rounded before.
bool few_rows_experts(const ggml_compute_params *params, ggml_tensor *out, int64_t expert, int64_t n, const Chosen *chosen,
                      char *) {
    const ggml_tensor *weights = out->src[0], *rows = out->src[1];
    const Kind *kind = kind_of(weights->type);
    if (!kind || rows->type == kind->values) return false;
    const int64_t k = weights->ne[0] / kind->block, m = weights->ne[1], stride = k * kind->value_size;
    if (!fits(kind, k)) return false;
    const Part own = {(const char *)weights->data + expert * weights->nb[2], m * params->ith / params->nth,
                      m * (params->ith + 1) / params->nth, (int64_t)weights->nb[1], k, {}, {}};
    multiply(*kind, own, n, [&](int64_t i, const char *&row, float *&to) {
        const auto [slot, token] = chosen[i];
        row = (const char *)params->wdata + (slot % rows->ne[1] + token * rows->ne[1]) * stride;
        to = (float *)((char *)out->data + slot * out->nb[1] + token * out->nb[2]);
    });
    return true;
}
bool few_rows_experts_fast(const ggml_compute_params *params, ggml_tensor *out, int64_t expert, int64_t n,
                           const Chosen *chosen, char *scratch) {
    const Kind *kind = kind_of(out->src[0]->type);
    TiledExperts *faster = kind && n <= kind->few ? few_rows_experts : library_experts;
    return faster(params, out, expert, n, chosen, scratch);
}

}
