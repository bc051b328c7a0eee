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
#include "repacked.h"
#include "repacked_k.h"
#include "values_of_16_bits.h"

namespace {

constexpr int64_t COLUMNS = 64;  // rows of weights that stay in the processor's cache for all rows
// Parts of the work for each thread, unless they have fewer bytes of weights than that: at the end of each is lost what
// the processor read ahead.
constexpr int64_t PARTS = 4;
constexpr int64_t LEAST = 256 << 10;
// More rows than that are multiplied faster by the library's tiles for weights in blocks of 256 values, as far as these
// have 512 bits (layers of Llama 3.2 1B on Zen 4; with AVX2 alone they are level from 64 rows on).
#if defined(__AVX512VNNI__)
constexpr int64_t FEW = 24;
#else
constexpr int64_t FEW = INT64_MAX;
#endif

// `M` rows of weights at a time, each the next one of its share, so that memory is read on from `M` places.
template <class W, class Read, int N, int M> METHOD void multiply_shares(const Part &p, const Read &rows, int64_t i) {
    const int64_t each = (p.to - i) / M, end = i + each;
    for (; i < end; i++) {
        const W *w[M];
        for (int m = 0; m < M; m++) w[m] = (const W *)(p.weights + (i + m * each) * p.pitch);
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
using Forward = bool(ggml_compute_params *, ggml_tensor *);
using Tiled = bool(const ggml_compute_params *, ggml_tensor *out);
using Experts = bool(const ggml_compute_params *, ggml_tensor *out, int64_t expert, int64_t n, const Chosen *, char *own);
using Multiply = bool(const ggml_compute_params *, int64_t m, int64_t n, int64_t k, const void *weights, int64_t pitch,
                      const void *rows, int64_t stride, void *out, int64_t next, int weights_type, int values_type,
                      int out_type);

}

namespace {

// The library's: its functions for several rows, and how its threads share work.
Multiply *library_multiply;
Tiled *library_tiled;
Experts *library_experts;
void (*set_part)(void *pool, int part);
int (*next_part)(void *pool, int count);
void (*wait_for_all)(void *pool);
// What stands in for its function for repacked Q4_0 otherwise: the same, row by row.
void (*q4_0_by_rows)(int n, float *out, size_t next, const void *weights, const void *values, int nr, int nc);

#ifdef REPACKED_K
Forward *library_forward;
int by_matrix, by_experts;
void *repacked_weights;
void *(*type_of)(void *buffer);
void (*round_row)(const float *row, void *to, int64_t k);
#endif

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

// Stands in for the library's ggml_gemm_q4_0_8x8_q8_0, whose rows lie one after the other (see repacked_rows.py): `n` values
// of `nr` rows, a multiple of four, times `nc` columns of weights; `next`: from a row's results to those of the next one.
void few_rows_q4_0(int n, float *out, size_t next, const void *weights, const void *values, int nr, int nc) {
    const int64_t blocks = n / 32;
    if (blocks > BLOCKS) return q4_0_by_rows(n, out, next, weights, values, nr, nc);
    for (int row = 0; row < nr; row += 4) {
        const Q8_0 *rows = (const Q8_0 *)values + row * blocks;
        RowScales &scales = own<RowScales>();
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

#ifdef REPACKED_K
// `n` rows, rounded, times `m` columns of `blocks` blocks of repacked Q4_K.
void few_rows_q4_K(const void *weights, int64_t m, int64_t blocks, const void *rows, int64_t n, float *out) {
    multiply_k((const Q4_Kx8 *)weights, 0, m, blocks, n, [&](int64_t i, const Q8_K *&row, float *&to) {
        row = (const Q8_K *)rows + i * blocks;
        to = out + i * m;
    });
}

// What else it takes to stand in for the library's ggml_cpu_extra_compute_forward: that function, the numbers of
// multiplications by a matrix and by those of experts, the type of buffers for repacked weights, what tells a buffer's
// type, and what rounds a row.
void few_rows_q4_K_init(Forward *forward, int mul_mat, int mul_mat_id, void *repacked, void *(*type)(void *),
                        void (*round)(const float *, void *, int64_t)) {
    library_forward = forward;
    by_matrix = mul_mat;
    by_experts = mul_mat_id;
    repacked_weights = repacked;
    type_of = type;
    round_row = round;
}

// Computes `op` if it is a multiplication by repacked Q4_K, else leaves it to the library.
bool few_rows_forward(ggml_compute_params *params, ggml_tensor *op) {
    const ggml_tensor *weights = op->src[0], *rows = op->src[1];
    const bool experts = op->op == by_experts;
    if ((!experts && op->op != by_matrix) || weights->type != 12 || rows->type != 0 || !weights->buffer ||
        type_of(weights->buffer) != repacked_weights || weights->ne[3] * rows->ne[3] != 1 ||
        (!experts && weights->ne[2] * rows->ne[2] != 1))
        return library_forward(params, op);
    const int64_t k = weights->ne[0], m = weights->ne[1], blocks = k / 256, n = rows->ne[1] * rows->ne[2];
    const int64_t ith = params->ith, nth = params->nth;
    Q8_K *rounded = (Q8_K *)params->wdata;
    for (int64_t i = ith; i < n; i += nth)
        round_row((const float *)((const char *)rows->data + i % rows->ne[1] * rows->nb[1] + i / rows->ne[1] * rows->nb[2]),
                  rounded + i * blocks, k);
    if (experts) {
        // As the library has it: how many rows go to each expert, then which.
        const ggml_tensor *ids = op->src[2];
        const int64_t tokens = rows->ne[2], n_experts = weights->ne[2];
        int64_t *counts = (int64_t *)(((uintptr_t)(rounded + n * blocks) + 7) & ~(uintptr_t)7);
        Chosen *chosen = (Chosen *)(counts + n_experts);
        if (ith == 0) {
            for (int64_t expert = 0; expert < n_experts; expert++) counts[expert] = 0;
            for (int32_t token = 0; token < ids->ne[1]; token++)
                for (int32_t slot = 0; slot < ids->ne[0]; slot++) {
                    const char *id = (const char *)ids->data + token * ids->nb[1] + slot * ids->nb[0];
                    const int64_t expert = *(const int32_t *)id;
                    chosen[expert * tokens + counts[expert]++] = {slot, token};
                }
        }
        wait_for_all(params->threadpool);
        for (int64_t expert = 0; expert < n_experts; expert++)
            multiply_k((const Q4_Kx8 *)((const char *)weights->data + expert * weights->nb[2]), m / 8 * ith / nth * 8,
                       m / 8 * (ith + 1) / nth * 8, blocks, counts[expert], [&](int64_t i, const Q8_K *&row, float *&to) {
                           const auto [slot, token] = chosen[expert * tokens + i];
                           row = rounded + (slot % rows->ne[1] + token * rows->ne[1]) * blocks;
                           to = (float *)((char *)op->data + slot * op->nb[1] + token * op->nb[2]);
                       });
        return true;
    }
    const int64_t parts = nth * PARTS, size = (m / 8 + parts - 1) / parts * 8;
    if (ith == 0) set_part(params->threadpool, (int)nth);
    wait_for_all(params->threadpool);
    for (int64_t from = ith * size; from < m; from = next_part(params->threadpool, 1) * size)
        multiply_k((const Q4_Kx8 *)weights->data, from, from + size < m ? from + size : m, blocks, n,
                   [&](int64_t i, const Q8_K *&row, float *&to) {
                       row = rounded + i * blocks;
                       to = (float *)((char *)op->data + i * op->nb[1]);
                   });
    return true;
}
#endif

}
