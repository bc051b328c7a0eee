// Copies of weights in the order of repacked ones: of types that the library does not repack, and of the embeddings where they
// are the output's weights as well, because it needs those as they are stored.

#pragma once

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "library.h"
#include "repacked.h"

namespace {

template <class S, class W> INLINE void put_values(const S &b, int column, W &to) {
    constexpr int together = Read<W>::COLUMNS;
    to.d[column] = b.d;
    for (size_t i = 0; i < sizeof(b.q); i += 8) memcpy(to.q + (i * together + 8 * column), b.q + i, 8);
}
template <class S, class W> INLINE void put_fifths(const S &b, int column, W &to) {
    for (int t = 0; t < 4; t++) to.h[8 * t + column] = b.h[t];
}
INLINE void put(const Q8_0 &b, int column, Q8_0x4 &to) { put_values(b, column, to); }
INLINE void put(const Q4_1 &b, int column, Q4_1x8 &to) {
    put_values(b, column, to);
    to.m[column] = b.m;
}
INLINE void put(const Q5_0 &b, int column, Q5_0x8 &to) {
    put_values(b, column, to);
    put_fifths(b, column, to);
}
INLINE void put(const Q5_1 &b, int column, Q5_1x8 &to) {
    put_values(b, column, to);
    put_fifths(b, column, to);
    to.m[column] = b.m;
}

INLINE void put(const Q2_K &b, int column, Q2_Kx8 &to) {
    put_values(b, column, to);
    to.m[column] = b.m;
    for (int part = 0; part < 16; part++) to.scales[part / 2 * 16 + 2 * column + part % 2] = b.scales[part];
}
INLINE void put(const Q3_K &b, int column, Q3_Kx8 &to) {
    put_values(b, column, to);
    for (int part = 0; part < 16; part++) {
        const int low = b.scales[part % 8] >> part / 8 * 4 & 15, high = b.scales[8 + part % 4] >> part / 4 * 2 & 3;
        to.scales[8 * part + column] = (int8_t)((low | high << 4) - 32);
    }
    // A byte has the third bits of values that are 32 apart; repacked ones 16, of half a block.
    for (int v = 0; v < 4; v++) {
        uint64_t eight = 0;
        for (int i = 0; i < 8; i++)
            eight |= (eight_bytes(b.h + i % 2 * 16 + v % 2 * 8) >> (v / 2 * 4 + i / 2) & 0x0101010101010101) << i;
        memcpy(to.h + 64 * v + 8 * column, &eight, 8);
    }
}
#ifdef VNNI
INLINE void put(const IQ4_XS &b, int column, IQ4_XSx8 &to) {
    to.d[column] = b.d;
    for (int part = 0; part < 8; part++)
        to.scales[8 * part + column] = (int8_t)((b.low[part / 2] >> part % 2 * 4 & 15 | (b.high >> part * 2 & 3) << 4) - 32);
    // Halves of a byte are 16 values apart; repacked ones 32.
    for (int piece = 0; piece < 4; piece++)
        for (int v = 0; v < 4; v++) {
            const uint8_t *of = b.q + 32 * piece + v % 2 * 8;
            const uint64_t low = 0x0f0f0f0f0f0f0f0f, first = eight_bytes(of) >> v / 2 * 4, last = eight_bytes(of + 16) >> v / 2 * 4;
            const uint64_t eight = (first & low) | (last & low) << 4;
            memcpy(to.q + 64 * (4 * piece + v) + 8 * column, &eight, 8);
        }
}
#endif

// `m` columns of `blocks` blocks each, a multiple of eight.
template <class S, class W> void reordered(const void *stored, int64_t m, int64_t blocks, void *to) {
    constexpr int together = Read<W>::COLUMNS;
    const S *from = (const S *)stored;
    for (int64_t c = 0; c < m; c++)
        for (int64_t i = 0; i < blocks; i++) put(from[c * blocks + i], (int)(c % together), ((W *)to)[c / together * blocks + i]);
}

// By types of weights; null: they are not copied.
struct Reordered {
    void (*make)(const void *stored, int64_t m, int64_t blocks, void *to);
    int values, size, repacked;  // values and bytes of a block as it is stored, and bytes of a column of repacked ones
} reorder[40];
template <class S, class W> constexpr Reordered reordered_to(int values) {
    return {reordered<S, W>, values, sizeof(S), sizeof(W) / Read<W>::COLUMNS};
}

// What hangs on a tensor. No pointer of the library's own points to itself.
struct Copy {
    const Copy *self;
    void *values;
    ggml_tensor *tensor;
};
INLINE const void *copy_of(const ggml_tensor *tensor) {
    const Copy *copy = (const Copy *)tensor->extra;
    return copy && copy->self == copy ? copy->values : nullptr;
}

// An entry of the library's list of a model's tensors, of which a std::string is the first member (GNU's).
struct Named {
    const char *name;
    size_t length;
    char own[16];
    ggml_tensor *tensor;
};
struct Copies {
    char *values;
    size_t bytes;
    int64_t n;
    Copy each[];
};

INLINE bool is_called(const Named &entry, const char *name) { return !strcmp(entry.name, name); }
INLINE int64_t blocks_of(const ggml_tensor &w) { return w.ne[0] / reorder[w.type].values; }
INLINE int64_t columns_of(const ggml_tensor &w) { return w.ne[1] * w.ne[2]; }
INLINE size_t bytes_of(const ggml_tensor &w) { return (size_t)(columns_of(w) * blocks_of(w) * reorder[w.type].repacked + 63) / 64 * 64; }
bool is_copied(const Named &entry, bool tied) {
    const ggml_tensor &w = *entry.tensor;
    const bool multiplied = !strncmp(entry.name, "blk.", 4) || is_called(entry, tied ? "token_embd.weight" : "output.weight");
    return multiplied && !strcmp(entry.name, w.name) && w.type >= 0 && w.type < 40 && reorder[w.type].make && !w.extra && w.data &&
           !w.view_src && (w.ne[2] == 1 || strstr(entry.name, "_exps")) && w.ne[3] == 1 && w.ne[1] % 8 == 0 && w.buffer &&
           (int64_t)w.nb[1] == blocks_of(w) * reorder[w.type].size && w.nb[2] == w.nb[1] * w.ne[1];
}

}  // namespace
