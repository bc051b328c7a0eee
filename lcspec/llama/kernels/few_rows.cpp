// A few rows (tokens) times a matrix of ggml, each row with the bits that it has alone.
//
// ggml multiplies a single row by a dot product for every row of weights (ggml-cpu, arch/x86/quants.c), and several by
// the same function again and again, or by code that sums in another order. Here every block of weights is unpacked
// once, for up to eight rows, whose values are brought into order once for all weights. The sums of a row are those of
// the dot product: its products are whole numbers, which any order adds up to the same, and its eight partial sums in
// floating point get one fused multiply-add for each block, in the order of the blocks. few_rows.py compiles this for
// the processor it runs on and compares the bits.

#include "blocks_of_256.h"
#include "blocks_of_32.h"
#include "formats.h"
#include "library.h"
#include "values_of_16_bits.h"

namespace {

// Parts of the work have so many bytes of weights at least.
constexpr int64_t LEAST = 256 << 10;
// More rows than that are multiplied faster by the library's tiles for weights in blocks of 256 values, as far as these
// have 512 bits (layers of Llama 3.2 1B on Zen 4; with AVX2 alone they are level from 64 rows on).
#if defined(__AVX512VNNI__)
constexpr int64_t FEW = 24;
#else
constexpr int64_t FEW = INT64_MAX;
#endif

// Bytes between what is multiplied and what is read.
constexpr int64_t BYTES_AHEAD = 4096;
// `M` rows of weights at a time, each the next one of its share, so that memory is read on from `M` places.
template <class W, class Read, int N, int M> METHOD void multiply_shares(const Part &p, const Read &rows, int64_t i) {
    const int64_t each = (p.to - i) / M, end = i + each;
    for (; i < end; i++) {
        const W *w[M];
        for (int m = 0; m < M; m++) {
            const char *row = p.weights + (i + m * each) * p.pitch;
            if (N > 4) read_ahead(row + BYTES_AHEAD, p.pitch);  // with fewer the processor does it as well
            w[m] = (const W *)row;
        }
        multiply_blocks<W, N, M>(w, p.blocks, rows, p.out, i, each);
    }
    if constexpr (M > 1) multiply_shares<W, Read, N, 1>(p, rows, i + (M - 1) * each);
}
// How many: blocks of 32 values are otherwise multiplied no faster than one sum can be added to the next.
template <class Read, int N> constexpr int together = 1;
template <> constexpr int together<Small, 1> = 4;
template <> constexpr int together<Small, 2> = 2;

template <class W, class Read, int N> void multiply_part(const Part &p) {
    Read &rows = own<Read>();
    read_rows<W, N>(rows, p.rows, p.blocks);
    multiply_shares<W, Read, N, together<Read, N>>(p, rows, p.from);
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

// A type of weights and what rows are rounded to, both as numbers of enum ggml_type.
struct Kind {
    int weights, values, block, size, value_size;  // `block`: values in one
    void (*multiply)(const Part &, int);
    bool use;
};
Kind kinds[] = {
    {1, 1, 1, sizeof(half), sizeof(half), halves<Narrow>, false},
    {2, 8, 32, sizeof(Q4_0), sizeof(Q8_0), blocks<Q4_0, Small>, false},
    {3, 9, 32, sizeof(Q4_1), sizeof(Q8_1), blocks<Q4_1, Small>, false},
    {6, 8, 32, sizeof(Q5_0), sizeof(Q8_0), blocks<Q5_0, Small>, false},
    {7, 9, 32, sizeof(Q5_1), sizeof(Q8_1), blocks<Q5_1, Small>, false},
    {8, 8, 32, sizeof(Q8_0), sizeof(Q8_0), blocks<Q8_0, Small>, false},
    {10, 15, 256, sizeof(Q2_K), sizeof(Q8_K), blocks<Q2_K, Large>, false},
    {11, 15, 256, sizeof(Q3_K), sizeof(Q8_K), blocks<Q3_K, Large>, false},
    {12, 15, 256, sizeof(Q4_K), sizeof(Q8_K), blocks<Q4_K, Large>, false},
    {13, 15, 256, sizeof(Q5_K), sizeof(Q8_K), blocks<Q5_K, Large>, false},
    {14, 15, 256, sizeof(Q6_K), sizeof(Q8_K), blocks<Q6_K, Large>, false},
    {20, 8, 32, sizeof(IQ4_NL), sizeof(Q8_0), blocks<IQ4_NL, Small>, false},
    {23, 15, 256, sizeof(IQ4_XS), sizeof(Q8_K), blocks<IQ4_XS, Large>, false},
    {39, 8, 32, sizeof(MXFP4), sizeof(Q8_0), blocks<MXFP4, Small>, false},
};
const Kind *kind_of(int weights) {
    for (const Kind &kind : kinds)
        if (kind.use && kind.weights == weights) return &kind;
    return nullptr;
}

// The library's functions for several rows.
Multiply *library_multiply;
Tiled *library_tiled;
Experts *library_experts;

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

void (*set_part)(void *pool, int part);
int (*next_part)(void *pool, int count);
void (*wait_for_all)(void *pool);

// Functions of the library, in the order of their declaration above, and whether its vectors have 512 bits.
void few_rows_init(Multiply *sgemm, Tiled *tiled, Experts *experts, void (*set)(void *, int),
                   int (*next)(void *, int), void (*wait)(void *), int (*has_wide)()) {
    library_multiply = sgemm;
    library_tiled = tiled;
    library_experts = experts;
    set_part = set;
    next_part = next;
    wait_for_all = wait;
    if (has_wide()) kinds[0].multiply = halves<Wide>;
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
    const int64_t nth = params->nth, fit = nth == 1 ? 1 : m * pitch / (LEAST * nth);
    const int64_t parts = nth * (fit < 1 ? 1 : fit < PARTS ? fit : PARTS), size = (m + parts - 1) / parts;
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

// Stands in for the library's ggml_compute_forward_mul_mat_id_tiled: the `n` rows that go to an expert, rounded before.
bool few_rows_exact_experts(const ggml_compute_params *params, ggml_tensor *out, int64_t expert, int64_t n, const Chosen *chosen,
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

// Where bits do not matter. Types without a kernel are left to the library's functions for several rows.
bool few_rows_fast(const ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *weights, int64_t pitch,
                   const void *rows, int64_t stride, void *out, int64_t next, int weights_type, int values_type,
                   int out_type) {
    Multiply *multiply = kind_of(weights_type) ? few_rows_exact : library_multiply;
    return multiply(params, m, n, k, weights, pitch, rows, stride, out, next, weights_type, values_type, out_type);
}
bool few_rows_fast_tiled(const ggml_compute_params *params, ggml_tensor *out) {
    return (out->ne[1] > FEW || !kind_of(out->src[0]->type)) && library_tiled(params, out);
}
// However many rows go to an expert: that depends on the piece of the text, and what a token becomes should not.
bool few_rows_fast_experts(const ggml_compute_params *params, ggml_tensor *out, int64_t expert, int64_t n,
                           const Chosen *chosen, char *own) {
    return (kind_of(out->src[0]->type) ? few_rows_exact_experts : library_experts)(params, out, expert, n, chosen, own);
}

}
