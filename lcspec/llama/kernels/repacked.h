// Weights as the library repacks them: blocks of eight columns (Q8_0: four), eight bytes of each in turn.
//
// How they are laid out is known from ggml-cpu, repack.h and repack.cpp. It does not repack Q4_1, Q5_0, Q5_1, Q3_K and
// IQ4_XS; these are ours (copies.h).

#pragma once

#include "columns.h"

namespace {

struct Q4_0x8 { half d[8]; uint8_t q[128]; };
struct Q4_1x8 { half d[8], m[8]; uint8_t q[128]; };
struct Q5_0x8 { half d[8]; uint8_t h[32], q[128]; };
struct Q5_1x8 { half d[8], m[8]; uint8_t h[32], q[128]; };
struct IQ4_NLx8 { half d[8]; uint8_t q[128]; };
struct MXFP4x8 { uint8_t exponents[8], q[128]; };
struct Q8_0x4 { half d[4]; int8_t q[128]; };
struct Q2_Kx8 { half d[8], m[8]; uint8_t scales[128], q[512]; };
struct Q3_Kx8 { half d[8]; int8_t scales[128]; uint8_t q[512], h[256]; };
struct Q4_Kx8 { half d[8], m[8]; uint8_t scales[96], q[1024]; };
struct Q5_Kx8 { half d[8], m[8]; uint8_t scales[96], h[256], q[1024]; };
struct Q6_Kx8 { half d[8]; int8_t scales[128]; uint8_t q[1024], h[512]; };
struct IQ4_XSx8 { half d[8]; int8_t scales[64]; uint8_t q[1024]; };

// How blocks of 32 values are read, what rows are rounded to, and what is summed of each of their blocks beforehand. AT_ONCE rows
// at most are multiplied together, or many, a multiple of TOGETHER.
template <class W> struct Read;
template <int LARGER> struct Of32Values {  // as bytes without a sign, which are `LARGER`, or (0) with one
    using Row = Q8_0;
    using RowOf32 = Row;
    static constexpr int AT_ONCE = 8, TOGETHER = 4;
    static constexpr bool SIGNED = LARGER == 0, LEAST = false;
    struct Sums { float d; int too_much; };
    METHOD static Sums sums(const Q8_0 &b) {
        const __m256i sum = add_byte_products(_mm256_setzero_si256(), _mm256_set1_epi8(1), load(b.q));
        return {value(b.d), -LARGER * sum_of(sum)};
    }
};
struct Of32WithLeast {
    using Row = Q8_1;
    using RowOf32 = Row;
    static constexpr int AT_ONCE = 8, TOGETHER = 4;
    static constexpr bool SIGNED = false, LEAST = true;
    struct Sums {
        float d, s;
        static constexpr int too_much = 0;
    };
    METHOD static Sums sums(const Q8_1 &b) { return {value(b.d), value(b.s)}; }
};
template <class Base, class W> struct Of32Halves : Base {
    static constexpr int COLUMNS = 8;
    METHOD static __m256 scales(const W *const *at) { return _mm256_cvtph_ps(load_half(at[0]->d)); }
    METHOD static void unpack(const W *w, int flip, Columns *q) {
        for (int t = 0; t < 2; t++) {
            const Columns both = flipped(read(w->q + 64 * t), flip);
            q[t] = low_halves(both);
            q[t + 2] = high_halves(both);
        }
    }
    METHOD static void unpack_five(const W *w, Columns *q) {
        unpack(w, 0, q);
        for (int t = 0; t < 4; t++) q[t] = with_fifth(q[t], w->h + 8 * t);
    }
    METHOD static void look_up(const W *w, __m128i levels, int larger, Columns *q) {
        unpack(w, 0, q);
        for (int t = 0; t < 4; t++) q[t] = looked_up(_mm_add_epi8(levels, _mm_set1_epi8((char)larger)), q[t]);
    }
    METHOD static __m256 least(const W *const *at) { return _mm256_cvtph_ps(load_half(at[0]->m)); }
};
template <> struct Read<Q4_0x8> : Of32Halves<Of32Values<8>, Q4_0x8> {
    METHOD static void unpack(const Q4_0x8 *const *at, Columns *q) {
        Of32Halves::unpack(at[0], 0x88, q);  // the library gives them a sign
    }
};
template <> struct Read<Q4_1x8> : Of32Halves<Of32WithLeast, Q4_1x8> {
    METHOD static void unpack(const Q4_1x8 *const *at, Columns *q) { Of32Halves::unpack(at[0], 0, q); }
};
template <> struct Read<Q5_0x8> : Of32Halves<Of32Values<16>, Q5_0x8> {
    METHOD static void unpack(const Q5_0x8 *const *at, Columns *q) { unpack_five(at[0], q); }
};
template <> struct Read<Q5_1x8> : Of32Halves<Of32WithLeast, Q5_1x8> {
    METHOD static void unpack(const Q5_1x8 *const *at, Columns *q) { unpack_five(at[0], q); }
};
template <> struct Read<IQ4_NLx8> : Of32Halves<Of32Values<OF_SIGNED>, IQ4_NLx8> {
    METHOD static void unpack(const IQ4_NLx8 *const *at, Columns *q) { look_up(at[0], levels_of_iq4(), OF_SIGNED, q); }
};
template <> struct Read<MXFP4x8> : Of32Halves<Of32Values<12>, MXFP4x8> {
    METHOD static void unpack(const MXFP4x8 *const *at, Columns *q) { look_up(at[0], levels_of_mxfp4(), 12, q); }
    // Half of two to the power of `exponent` - 127.
    METHOD static __m256 scales(const MXFP4x8 *const *at) {
        const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at[0]->exponents));
        const __m256i smallest = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), e);  // not normal
        const __m256i others = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
        return _mm256_castsi256_ps(_mm256_blendv_epi8(smallest, others, normal));
    }
};
template <> struct Read<Q8_0x4> : Of32Values<OF_SIGNED> {
    static constexpr int COLUMNS = 4;
    METHOD static __m256 scales(const Q8_0x4 *const *at) {
        const __m128i first = _mm_loadl_epi64((const __m128i *)at[0]->d), last = _mm_loadl_epi64((const __m128i *)at[1]->d);
        return _mm256_cvtph_ps(_mm_unpacklo_epi64(first, last));
    }
    METHOD static void unpack(const Q8_0x4 *const *at, Columns *q) {
        for (int t = 0; t < 4; t++) q[t] = flipped(read_halves(at[0]->q + 32 * t, at[1]->q + 32 * t), OF_SIGNED);
    }
};

// Scales of eight columns and of parts of a block, and in pairs of parts what their sums of a row are multiplied by.
struct Scales { alignas(64) int8_t of[GROUPS][128], pairs[8][16 * GROUPS]; };
template <class W> INLINE void unpack_scales(const W &w, int g, Scales &to) {
    // 12 bytes for each part: a third of them in a vector.
    const __m256i all[] = {load(w.scales), load(w.scales + 32), load(w.scales + 64)};
#define THIRD(a, b, c) \
    _mm256_blend_epi32(_mm256_blend_epi32(_mm256_permutevar8x32_epi32(all[0], a), _mm256_permutevar8x32_epi32(all[1], a), b), \
                       _mm256_permutevar8x32_epi32(all[2], a), c)
    const __m256i packed[] = {THIRD(_mm256_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5), 0x38, 0xc0),
                              THIRD(_mm256_setr_epi32(1, 4, 7, 2, 5, 0, 3, 6), 0x18, 0xe0),
                              THIRD(_mm256_setr_epi32(2, 5, 0, 3, 6, 1, 4, 7), 0x1c, 0xe0)};
#undef THIRD
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
        _mm_storeu_si128((__m128i *)(to.of[g] + 16 * j), _mm256_castsi256_si128(of_scales[j]));
        _mm_storeu_si128((__m128i *)(to.of[g] + 16 * (j + 2)), _mm256_extracti128_si256(of_scales[j], 1));
        _mm_storeu_si128((__m128i *)(to.pairs[j] + 16 * g), _mm256_castsi256_si128(of_least[j]));
        _mm_storeu_si128((__m128i *)(to.pairs[j + 2] + 16 * g), _mm256_extracti128_si256(of_least[j], 1));
    }
}

// The same of scales with a sign, which need no unpacking.
template <int PAIRS> INLINE void copy_scales(const int8_t *scales, int g, Scales &to) {
    for (int j = 0; j < PAIRS; j++) {
        const __m128i two = load_half(scales + 16 * j);
        _mm_storeu_si128((__m128i *)(to.of[g] + 16 * j), two);
        _mm_storeu_si128((__m128i *)(to.pairs[j] + 16 * g), _mm_unpacklo_epi8(two, _mm_srli_si128(two, 8)));
    }
}

// How sums of products are scaled and added up. Those of ROOM vectors with a row fit 16 bits, if no byte is above LARGEST.
template <int LARGEST> struct UpTo {
    static constexpr int ROOM = INT16_MAX / (LARGEST * 128 * IN_A_LANE);
    METHOD static TwoScales both(const int8_t *first, const int8_t *last) { return two_scales_of(first, last); }
    METHOD static Columns add(Columns all, Columns first, Columns last, const TwoScales &scales) {
        return add_scaled(all, first, last, scales);
    }
    METHOD static Whole columns(const Columns *sums) { return by_column_of_two(sums); }
};

// How blocks of 256 values are read: in `PIECES` of twice `HALF` vectors of eight values of each column. The second half is
// `BETWEEN` values behind the first, and its scales SCALES_BETWEEN. Without a LEAST, values are two to the power of TWICE too
// large. IN_TURN: their bytes are read one after the other.
struct Of256Values {
    using Row = Q8_K;
    static constexpr int COLUMNS = 8, AT_ONCE = GROUPS == 2 ? 4 : 8, TOGETHER = 8;  // as far as there are registers
};
struct InPartsOf32 : Of256Values {
    static constexpr int PIECES = 4, HALF = 4, BETWEEN = 32, PAIRS = 4, SCALES = 8;
    static constexpr int SCALES_BETWEEN = 8;
    static constexpr bool IN_TURN = true;
    using Sums = __m128i;  // of 32 values each
    METHOD static Sums sums(const Q8_K &b) { return _mm_hadd_epi16(load_half(b.sums), load_half(b.sums + 8)); }
    METHOD static const int *pairs_of(const Q8_K &, const Sums &sums) { return (const int *)&sums; }
    METHOD static int from(int piece) { return 64 * piece; }
    METHOD static int scales_from(int piece) { return 16 * piece; }
};
template <int LARGEST> struct WithLeast : InPartsOf32, UpTo<LARGEST> {
    static constexpr bool LEAST = true;
    template <class W> METHOD static void scales(const W &w, int g, Scales &to) { unpack_scales(w, g, to); }
};
template <> struct Read<Q4_Kx8> : WithLeast<15> {
    METHOD static void unpack(const Q4_Kx8 &w, int piece, Columns *q) {
        for (int t = 0; t < 4; t++) {
            const Columns both = read(w.q + 64 * (4 * piece + t));
            q[t] = low_halves(both);
            q[t + 4] = high_halves(both);
        }
    }
};
template <> struct Read<Q5_Kx8> : WithLeast<31> {
    METHOD static void unpack(const Q5_Kx8 &w, int piece, Columns *q) {
        for (int t = 0; t < 4; t++) {
            const Columns both = read(w.q + 64 * (4 * piece + t)), h = read(w.h + 64 * t);
            q[t] = with_top(low_halves(both), h, 4 - 2 * piece, 16);
            q[t + 4] = with_top(high_halves(both), h, 3 - 2 * piece, 16);
        }
    }
};
struct InPartsOf16 : Of256Values {
    static constexpr int PIECES = 8, HALF = 2, BETWEEN = 64, PAIRS = 8, SCALES = 16, SCALES_BETWEEN = 32;
    static constexpr bool LEAST = false, IN_TURN = false;
    struct Sums {};
    METHOD static Sums sums(const Q8_K &) { return {}; }
    METHOD static const int *pairs_of(const Q8_K &b, const Sums &) { return (const int *)b.sums; }
    METHOD static int from(int piece) { return piece / 4 * 128 + piece % 4 * 16; }
    template <class W> METHOD static void scales(const W &w, int g, Scales &to) { copy_scales<8>(w.scales, g, to); }
    METHOD static int scales_from(int piece) { return piece / 4 * 64 + piece % 4 * 8; }
};
template <class W> struct OfTwoBits : InPartsOf16 {
    METHOD static void unpack(const W &w, int piece, Columns *q) {
        for (int t = 0; t < 2; t++) {
            const Columns four = read(w.q + 64 * (piece / 4 * 4 + piece % 2 * 2 + t));
            const int left = piece % 4 < 2 ? 0 : -2;
            q[t] = with_top(none(), four, left, 3);
            q[t + 2] = with_top(none(), four, left - 4, 3);
        }
    }
};
template <> struct Read<Q2_Kx8> : OfTwoBits<Q2_Kx8>, UpTo<3> {
    static constexpr bool LEAST = true;
    METHOD static void scales(const Q2_Kx8 &w, int g, Scales &to) {
        const __m128i low = _mm_set1_epi8(15), in_turn = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        for (int j = 0; j < 8; j++) {
            const __m128i two = load_half(w.scales + 16 * j), scales = _mm_shuffle_epi8(_mm_and_si128(two, low), in_turn);
            _mm_storeu_si128((__m128i *)(to.of[g] + 16 * j), scales);
            _mm_storeu_si128((__m128i *)(to.pairs[j] + 16 * g), _mm_and_si128(_mm_srli_epi16(two, 4), low));
        }
    }
};
template <> struct Read<Q3_Kx8> : OfTwoBits<Q3_Kx8>, UpTo<7> {
    static constexpr int TWICE = 2;
    METHOD static void unpack(const Q3_Kx8 &w, int piece, Columns *q) {
        OfTwoBits::unpack(w, piece, q);
        for (int t = 0; t < 2; t++) {
            const Columns h = read(w.h + 64 * (piece / 4 * 2 + t));
            q[t] = with_top(q[t], h, 2 - piece % 4, 4);
            q[t + 2] = with_top(q[t + 2], h, -2 - piece % 4, 4);
        }
    }
};
template <> struct Read<Q6_Kx8> : InPartsOf16, UpTo<63> {
    static constexpr int TWICE = 5;
    METHOD static void unpack(const Q6_Kx8 &w, int piece, Columns *q) {
        const int left = piece % 4 < 2 ? 4 : 2;
        for (int t = 0; t < 2; t++) {
            const Columns both = read(w.q + 64 * (2 * piece + t));
            const Columns h = read(w.h + 64 * (piece / 4 * 4 + piece % 2 * 2 + t));
            q[t] = with_top(low_halves(both), h, left, 48);
            q[t + 2] = with_top(high_halves(both), h, left - 4, 48);
        }
    }
};
#ifdef VNNI
// Their values are 241 at most, so sums need 32 bits.
template <> struct Read<IQ4_XSx8> : InPartsOf32 {
    static constexpr int TWICE = 7, ROOM = HALF;
    static constexpr bool LEAST = false;
    struct Both { Scale first, last; };
    METHOD static void scales(const IQ4_XSx8 &w, int g, Scales &to) { copy_scales<4>(w.scales, g, to); }
    METHOD static Both both(const int8_t *first, const int8_t *last) { return {scale_of(first), scale_of(last)}; }
    METHOD static Columns add(Columns all, Columns first, Columns last, const Both &scales) {
        return add_scaled(add_scaled(all, first, scales.first), last, scales.last);
    }
    METHOD static Whole columns(const Columns *sums) { return by_column(sums); }
    METHOD static void unpack(const IQ4_XSx8 &w, int piece, Columns *q) {
        const __m128i levels = _mm_add_epi8(levels_of_iq4(), _mm_set1_epi8((char)128));
        for (int t = 0; t < 4; t++) {
            const Columns both = read(w.q + 64 * (4 * piece + t));
            q[t] = looked_up(levels, low_halves(both));
            q[t + 4] = looked_up(levels, high_halves(both));
        }
    }
};
#endif

}  // namespace
