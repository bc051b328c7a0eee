// A few rows (tokens) times a quantized matrix of ggml, each row with the bits that it has alone.
//
// ggml multiplies a single row by a dot product for every row of weights (ggml-cpu, arch/x86/quants.c), and several by
// the same function again and again, or by code that sums in another order. Here every block of weights is unpacked
// once, for up to eight rows. The sums of a row are those of the dot product: its products are whole numbers, which any
// order adds up to the same, and its eight partial sums in floating point get one fused multiply-add for each block, in
// the order of the blocks. few_rows.py compiles this for the processor it runs on and compares the bits.
//
// The formats are those of ggml-common.h.

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define METHOD inline __attribute__((always_inline))

namespace {

constexpr int ROWS = 8;           // that share what was unpacked
constexpr int BLOCKS = 1024;      // of 32 values that a row may have; their scales lie on the stack
constexpr int64_t COLUMNS = 64;   // rows of weights that stay in the processor's cache for all rows
constexpr int PARTS = 4;          // of the work for each thread

// More rows than that are multiplied faster by the library's kernels for prompts, measured on AVX2 (Zen 3's set) and
// AVX-512 (Zen 4). It has none for Q4_1 and Q5_1, and those for blocks of 256 values are made for AVX-512.
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

// ---- Blocks of 32 values

INLINE __m256i nibbles(const uint8_t *q) {
    __m128i two = load_half(q);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(two, 4), two), _mm256_set1_epi8(15));
}
// A byte for each of 32 bits: `set` or `clear`.
INLINE __m256i bits(const uint8_t *h, char set, char clear) {
    int four;
    __builtin_memcpy(&four, h, 4);
    const __m256i own = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
    __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own), own);
    return _mm256_blendv_epi8(_mm256_set1_epi8(clear), _mm256_set1_epi8(set), is_set);
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

// Scales and sums of the rows' blocks in 32 bits, those of all rows side by side; 0 for rows that there are not.
struct Scales { float d[BLOCKS][ROWS], s[BLOCKS][ROWS]; };

template <class V> METHOD void read_scales(Scales &to, const char *rows, int64_t stride, int n, int64_t blocks) {
    for (int64_t i = 0; i < blocks; i++)
        for (int r = 0; r < ROWS; r++) {
            const half *block = (const half *)(rows + r * stride + i * (int64_t)sizeof(V));
            to.d[i][r] = r < n ? value(block[0]) : 0;
            if (sizeof(V) == sizeof(Q8_1)) to.s[i][r] = r < n ? value(block[1]) : 0;
        }
}

template <class W, int N>
void multiply_blocks(const W *w, int64_t blocks, const char *rows, int64_t stride, const Scales &scales, float *to,
                     int64_t next) {
    using V = typename Rounded<W>::type;
    __m256 sums[N], rest = _mm256_setzero_ps();
    for (int r = 0; r < N; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        const __m256i q = unpack(w[i]), size = Rounded<W>::minimum ? q : _mm256_sign_epi8(q, q);
        const __m256 d = _mm256_set1_ps(value(w[i].d));
        if (Rounded<W>::minimum)
            rest = _mm256_fmadd_ps(_mm256_set1_ps(minimum(w[i])), _mm256_loadu_ps(scales.s[i]), rest);
        for (int r = 0; r < N; r++) {
            __m256i v = load(((const V *)(rows + r * stride))[i].q);
            if (!Rounded<W>::minimum) v = _mm256_sign_epi8(v, q);
            const __m256 products = _mm256_cvtepi32_ps(add_byte_products(_mm256_setzero_si256(), size, v));
            sums[r] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(scales.d[i][r])), products, sums[r]);
        }
    }
    float more[ROWS];
    _mm256_storeu_ps(more, rest);
    for (int r = 0; r < N; r++) to[r * next] = Rounded<W>::minimum ? sum_of(sums[r]) + more[r] : sum_of(sums[r]);
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

// What is taken from a row for the minima of its weights; the dot products of Q4_K and Q5_K sum it in two ways.
struct Sums { __m128i of[BLOCKS / 8][ROWS]; };  // of each 32 values of a row's blocks

INLINE void read_sums(Sums &to, const char *rows, int64_t stride, int n, int64_t blocks) {
    for (int64_t i = 0; i < blocks; i++)
        for (int r = 0; r < n; r++) {
            const __m256i sums = load(((const Q8_K *)(rows + r * stride))[i].sums);
            to.of[i][r] = _mm_hadd_epi16(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        }
}
template <class W> struct Minima {
    METHOD void add(const W &, const Unpacked &, float, __m128i) {}
    METHOD float sum() const { return 0; }
};
template <> struct Minima<Q4_K> {
    __m128 sums = _mm_setzero_ps();
    METHOD void add(const Q4_K &b, const Unpacked &w, float d, __m128i of_row) {
        sums = _mm_fmadd_ps(_mm_set1_ps(-d * value(b.m)), _mm_cvtepi32_ps(_mm_madd_epi16(w.minima, of_row)), sums);
    }
    METHOD float sum() const { return sum_of(sums); }
};
template <> struct Minima<Q5_K> {
    float all = 0;
    METHOD void add(const Q5_K &b, const Unpacked &w, float d, __m128i of_row) {
        __m128i four = _mm_madd_epi16(w.minima, of_row);
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        all = __builtin_fmaf(-d * value(b.m), (float)_mm_cvtsi128_si32(four), all);
    }
    METHOD float sum() const { return all; }
};

template <class W> struct Traits { static constexpr bool minima = false, shifted = false, has_sign = true; };
template <> struct Traits<Q4_K> { static constexpr bool minima = true, shifted = false, has_sign = false; };
template <> struct Traits<Q5_K> { static constexpr bool minima = true, shifted = false, has_sign = false; };
template <> struct Traits<Q6_K> { static constexpr bool minima = false, shifted = true, has_sign = false; };

template <class W, int N>
void multiply_blocks(const W *w, int64_t blocks, const char *rows, int64_t stride, const Sums &of_rows, float *to,
                     int64_t next) {
    __m256 sums[N];
    Minima<W> minima[N];
    for (int r = 0; r < N; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < blocks; i++) {
        Unpacked u;
        unpack(w[i], u);
        const float d = value(w[i].d);
        for (int r = 0; r < N; r++) {
            const Q8_K &v = ((const Q8_K *)(rows + r * stride))[i];
            __m256i even = _mm256_setzero_si256(), odd = even;
            for (int j = 0; j < 8; j++) {
                __m256i values = load(v.q + 32 * j);
                if (Traits<W>::has_sign) values = _mm256_sign_epi8(values, u.sign[j]);
                __m256i &half_of_them = j % 2 ? odd : even;
                half_of_them = add_products(half_of_them, _mm256_maddubs_epi16(u.q[j], values), u.scale[j]);
            }
            __m256i all = _mm256_add_epi32(even, odd);
            if (Traits<W>::shifted)
                all = _mm256_sub_epi32(all, _mm256_slli_epi32(_mm256_madd_epi16(load(v.sums), u.shift), 5));
            sums[r] = _mm256_fmadd_ps(_mm256_set1_ps(v.d * d), _mm256_cvtepi32_ps(all), sums[r]);
            if (Traits<W>::minima) minima[r].add(w[i], u, v.d, of_rows.of[i][r]);
        }
    }
    for (int r = 0; r < N; r++) to[r * next] = Traits<W>::minima ? sum_of(sums[r]) + minima[r].sum() : sum_of(sums[r]);
}

// ---- Matrices

// Some rows of weights, and at most ROWS rows; `next`: from a row's results to those of the next one.
struct Part {
    const char *weights;
    int64_t from, to, pitch, blocks;
    const char *rows;
    int64_t stride;
    float *out;
    int64_t next;
};

// `read`: what was read of the rows beforehand, Scales or Sums.
template <class W, int N, class Read> METHOD void multiply_part(const Part &p, const Read &read) {
    for (int64_t i = p.from; i < p.to; i++)
        multiply_blocks<W, N>((const W *)(p.weights + i * p.pitch), p.blocks, p.rows, p.stride, read, p.out + i, p.next);
}
template <class W, class Read> METHOD void multiply_rows(const Part &p, int n, const Read &read) {
    switch (n) {
        case 1: return multiply_part<W, 1>(p, read);
        case 2: return multiply_part<W, 2>(p, read);
        case 3: return multiply_part<W, 3>(p, read);
        case 4: return multiply_part<W, 4>(p, read);
        case 5: return multiply_part<W, 5>(p, read);
        case 6: return multiply_part<W, 6>(p, read);
        case 7: return multiply_part<W, 7>(p, read);
        default: return multiply_part<W, 8>(p, read);
    }
}
template <class W> void small(const Part &p, int n) {
    Scales scales;
    read_scales<typename Rounded<W>::type>(scales, p.rows, p.stride, n, p.blocks);
    multiply_rows<W>(p, n, scales);
}
template <class W> void large(const Part &p, int n) {
    Sums sums;
    if (Traits<W>::minima) read_sums(sums, p.rows, p.stride, n, p.blocks);
    multiply_rows<W>(p, n, sums);
}

// ---- Q4_0, as the library repacks it: blocks of eight columns, eight bytes of each in turn, and nibbles with a sign

struct Q4_0x8 { half d[8]; uint8_t q[128]; };

// Four values of every column, in the order of columns 0, 4, 1, 5, 2, 6, 3, 7; those of the next four.
INLINE void by_columns(__m256i first, __m256i last, __m256i &four, __m256i &next) {
    four = _mm256_blend_epi32(first, _mm256_shuffle_epi32(last, 0xb1), 0xaa);
    next = _mm256_blend_epi32(_mm256_shuffle_epi32(first, 0xb1), last, 0xaa);
}

template <int N>
void multiply_columns(const Q4_0x8 *w, int64_t blocks, const Q8_0 *rows, const Scales &scales, float *to, int64_t next) {
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
struct Kind { int weights, values, size, value_size; int64_t few; void (*multiply)(const Part &, int); bool use; };
Kind kinds[] = {
    {2, 8, sizeof(Q4_0), sizeof(Q8_0), FEW, small<Q4_0>, false},
    {3, 9, sizeof(Q4_1), sizeof(Q8_1), ANY, small<Q4_1>, false},
    {6, 8, sizeof(Q5_0), sizeof(Q8_0), FEW, small<Q5_0>, false},
    {7, 9, sizeof(Q5_1), sizeof(Q8_1), ANY, small<Q5_1>, false},
    {8, 8, sizeof(Q8_0), sizeof(Q8_0), FEW, small<Q8_0>, false},
    {11, 15, sizeof(Q3_K), sizeof(Q8_K), FEW_LARGE, large<Q3_K>, false},
    {12, 15, sizeof(Q4_K), sizeof(Q8_K), FEW_LARGE, large<Q4_K>, false},
    {13, 15, sizeof(Q5_K), sizeof(Q8_K), FEW_LARGE, large<Q5_K>, false},
    {14, 15, sizeof(Q6_K), sizeof(Q8_K), FEW_LARGE, large<Q6_K>, false},
    {23, 15, sizeof(IQ4_XS), sizeof(Q8_K), FEW_LARGE, large<IQ4_XS>, false},
};
Kind *kind_of(int weights, int values) {
    for (Kind &kind : kinds)
        if (kind.use && kind.weights == weights && kind.values == values) return &kind;
    return nullptr;
}

}  // namespace

extern "C" {

struct ggml_compute_params { int ith, nth; size_t wsize; void *wdata; void *threadpool; };
struct ggml_tensor {  // up to what it is computed from
    int type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op, op_params[16], flags;
    ggml_tensor *src[10];
};
using Multiply = bool(const ggml_compute_params *, int64_t m, int64_t n, int64_t k, const void *weights, int64_t pitch,
                      const void *rows, int64_t stride, void *out, int64_t next, int weights_type, int values_type,
                      int out_type);

}

namespace {

// The library's: its kernels for prompts, and how its threads share work.
Multiply *library_multiply;
bool (*library_tiled)(const ggml_compute_params *, ggml_tensor *);
void (*set_part)(void *pool, int part);
int (*next_part)(void *pool, int count);
void (*wait_for_all)(void *pool);
// What stands in for its function for repacked Q4_0 otherwise: the same, row by row.
void (*q4_0_by_rows)(int n, float *out, size_t next, const void *weights, const void *values, int nr, int nc);

void multiply(const Kind &kind, const ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *weights,
              int64_t pitch, const void *rows, int64_t stride, void *out, int64_t next) {
    const int64_t parts = PARTS * params->nth, size = (m + parts - 1) / parts;
    const bool alone = params->nth == 1;
    if (!alone) {
        if (params->ith == 0) set_part(params->threadpool, params->nth);
        wait_for_all(params->threadpool);
    }
    stride *= kind.value_size;
    for (int64_t part = params->ith; part < parts; part = alone ? part + 1 : next_part(params->threadpool, 1)) {
        const int64_t end = size * (part + 1) < m ? size * (part + 1) : m;
        for (int64_t from = size * part; from < end; from += COLUMNS)
            for (int64_t row = 0; row < n; row += ROWS) {
                const int64_t to = from + COLUMNS < end ? from + COLUMNS : end;
                const Part some = {(const char *)weights, from, to, pitch * kind.size, k,
                                   (const char *)rows + row * stride, stride, (float *)out + row * next, next};
                kind.multiply(some, (int)(n - row < ROWS ? n - row : ROWS));
            }
    }
    if (!alone) wait_for_all(params->threadpool);
}

}  // namespace

extern "C" {

// Functions of the library, in the order of their declaration above.
void few_rows_init(Multiply *sgemm, bool (*tiled)(const ggml_compute_params *, ggml_tensor *), void (*set)(void *, int),
                   int (*next)(void *, int), void (*wait)(void *)) {
    library_multiply = sgemm;
    library_tiled = tiled;
    set_part = set;
    next_part = next;
    wait_for_all = wait;
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
    const Kind *kind = kind_of(weights_type, values_type);
    if (!kind || n < 2 || k > (values_type == 15 ? BLOCKS / 8 : BLOCKS) || out_type != 0) return false;
    multiply(*kind, params, m, n, k, weights, pitch, rows, stride, out, next);
    return true;
}

// The same where bits do not matter: whatever is faster.
bool few_rows_fast(const ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *weights, int64_t pitch,
                   const void *rows, int64_t stride, void *out, int64_t next, int weights_type, int values_type,
                   int out_type) {
    const Kind *kind = kind_of(weights_type, values_type);
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
        Scales scales;
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
    const Kind *kind = kind_of(out->src[0]->type, 15);
    return (!kind || out->ne[1] > kind->few) && library_tiled(params, out);
}

}
