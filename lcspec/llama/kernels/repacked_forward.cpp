// Multiplications by repacked weights: one function of the library for all that has to do with them, and what stands in.

#include "copies.h"
#include "library.h"
#include "multiply_repacked.h"
#include "rounding.h"

namespace {

Forward *library_forward;
int by_matrix, by_experts, to_fill;
void *repacked_weights;
void *(*type_of)(void *buffer);
using Round = void(const float *row, void *to, int64_t k);

// `op` is a multiplication of `rows`, or of those that go to each expert, by weights that are repacked as `W`, or a copy is.
template <class W> void multiply_operation(ggml_compute_params *params, ggml_tensor *op, bool experts, Round *round) {
    using Row = typename Read<W>::Row;
    const ggml_tensor *weights = op->src[0], *rows = op->src[1];
    const void *copy = copy_of(weights), *values = copy ? copy : weights->data;
    const int64_t k = weights->ne[0], m = weights->ne[1], blocks = k / (int64_t)(sizeof(Row::q)), ith = params->ith;
    const int64_t nth = params->nth, n = rows->ne[1] * rows->ne[2];
    Row *rounded = (Row *)params->wdata;
    for (int64_t i = ith; i < n; i += nth)
        round((const float *)((const char *)rows->data + i % rows->ne[1] * rows->nb[1] + i / rows->ne[1] * rows->nb[2]),
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
            multiply_repacked((const W *)values + expert * m / Read<W>::COLUMNS * blocks, m / 8 * ith / nth * 8,
                              m / 8 * (ith + 1) / nth * 8, blocks, counts[expert], [&](int64_t i, const Row *&row, float *&to) {
                                  const auto [slot, token] = chosen[expert * tokens + i];
                                  row = rounded + (slot % rows->ne[1] + token * rows->ne[1]) * blocks;
                                  to = (float *)((char *)op->data + slot * op->nb[1] + token * op->nb[2]);
                              });
        return;
    }
    const int64_t parts = nth * PARTS, size = (m / 8 + parts - 1) / parts * 8;
    if (ith == 0) set_part(params->threadpool, (int)nth);
    wait_for_all(params->threadpool);
    for (int64_t from = ith * size; from < m; from = next_part(params->threadpool, 1) * size)
        multiply_repacked((const W *)values, from, from + size < m ? from + size : m, blocks, n,
                          [&](int64_t i, const Row *&row, float *&to) {
                              row = rounded + i * blocks;
                              to = (float *)((char *)op->data + i % rows->ne[1] * op->nb[1] + i / rows->ne[1] * op->nb[2]);
                          });
}

template <class W> void compared(const void *weights, int64_t m, int64_t blocks, const void *rows, int64_t n, float *out) {
    using Row = typename Read<W>::Row;
    multiply_repacked((const W *)weights, 0, m, blocks, n, [&](int64_t i, const Row *&row, float *&to) {
        row = (const Row *)rows + i * blocks;
        to = out + i * m;
    });
}

// Fills a tensor of floats with one number; false: there are gaps. The library goes row by row, and the rows of logits that a
// head's map of tokens begins with have one number each: two divisions for each, which is a third of the head's time.
bool filled(const ggml_compute_params *params, ggml_tensor *op) {
    int64_t n = 1;
    for (int i = 0; i < 4; n *= op->ne[i++])
        if (op->nb[i] != n * sizeof(float)) return false;
    float number;
    __builtin_memcpy(&number, op->op_params, sizeof(number));
    float *to = (float *)op->data;
    for (int64_t i = n * params->ith / params->nth; i < n * (params->ith + 1) / params->nth; i++) to[i] = number;
    return true;
}

// By types of weights: how repacked ones are multiplied, and what rounds a row (null: they are left to the library).
struct Repacked {
    void (*multiply)(ggml_compute_params *, ggml_tensor *, bool experts, Round *);
    void (*compared)(const void *weights, int64_t m, int64_t blocks, const void *rows, int64_t n, float *out);
    Round *round;
} repacked[40];
template <class W> constexpr Repacked kernel_for{multiply_operation<W>, compared<W>, nullptr};

}  // namespace

extern "C" {

// `n` rows, rounded, times `m` columns of `blocks` blocks of repacked weights of this type, to compare bits.
void few_rows_repacked(int type, const void *weights, int64_t m, int64_t blocks, const void *rows, int64_t n, float *out) {
    repacked[type].compared(weights, m, blocks, rows, n, out);
}

// What it takes to stand in for the library's ggml_cpu_extra_compute_forward: that function, the numbers of
// multiplications by a matrix and by those of experts, and of filling, the type of buffers for repacked weights, what
// tells a buffer's type.
void few_rows_repacked_init(Forward *forward, int mul_mat, int mul_mat_id, int fill, void *buffers, void *(*type)(void *)) {
    library_forward = forward;
    by_matrix = mul_mat;
    by_experts = mul_mat_id;
    to_fill = fill;
    repacked_weights = buffers;
    type_of = type;
    repacked[2] = kernel_for<Q4_0x8>;
    repacked[3] = kernel_for<Q4_1x8>;
    repacked[6] = kernel_for<Q5_0x8>;
    repacked[7] = kernel_for<Q5_1x8>;
    repacked[8] = kernel_for<Q8_0x4>;
    repacked[10] = kernel_for<Q2_Kx8>;
    repacked[11] = kernel_for<Q3_Kx8>;
    repacked[12] = kernel_for<Q4_Kx8>;
    repacked[13] = kernel_for<Q5_Kx8>;
    repacked[14] = kernel_for<Q6_Kx8>;
    repacked[20] = kernel_for<IQ4_NLx8>;
    repacked[39] = kernel_for<MXFP4x8>;
    reorder[3] = reordered_to<Q4_1, Q4_1x8>(32);
    reorder[6] = reordered_to<Q5_0, Q5_0x8>(32);
    reorder[7] = reordered_to<Q5_1, Q5_1x8>(32);
    reorder[8] = reordered_to<Q8_0, Q8_0x4>(32);
    reorder[10] = reordered_to<Q2_K, Q2_Kx8>(256);
    reorder[11] = reordered_to<Q3_K, Q3_Kx8>(256);
#ifdef VNNI
    repacked[23] = kernel_for<IQ4_XSx8>;
    reorder[23] = reordered_to<IQ4_XS, IQ4_XSx8>(256);
#endif
}

// A row of `k` values, rounded.
void few_rows_round_q8_K(const float *row, void *to, int64_t k) { round_to_q8_K(row, (Q8_K *)to, k); }

// Take repacked weights of this type from now on, for which `round` rounds a row.
void few_rows_use_repacked(int type, Round *round) { repacked[type].round = round; }

// Bytes of a column of so many blocks in a copy; 0: weights of this type are not copied.
int64_t few_rows_copied(int type, int64_t blocks) { return blocks * reorder[type].repacked; }

// Weights of this type as they are stored, brought into order.
void few_rows_reorder(int type, const void *stored, int64_t m, int64_t blocks, void *to) { reorder[type].make(stored, m, blocks, to); }

// Room for copies of what a model has of such weights, which the entries from `first` to `last` list; null: nothing, or no memory.
Copies *few_rows_copies(const Named *first, const Named *last) {
    bool tied = true;
    for (const Named *entry = first; entry < last; entry++) tied = tied && !is_called(*entry, "output.weight");
    const auto copied = [&](const Named &entry) {
        return is_copied(entry, tied) && repacked[entry.tensor->type].round && type_of(entry.tensor->buffer) != repacked_weights;
    };
    int64_t n = 0;
    size_t bytes = 0;
    for (const Named *entry = first; entry < last; entry++)
        if (copied(*entry)) n++, bytes += bytes_of(*entry->tensor);
    if (!n) return nullptr;
    Copies *all = (Copies *)malloc(sizeof(Copies) + n * sizeof(Copy));
    void *values = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!all || values == MAP_FAILED) return free(all), nullptr;
    madvise(values, bytes, MADV_HUGEPAGE);
    *all = {(char *)values, bytes, 0};
    char *to = all->values;
    for (const Named *entry = first; entry < last; entry++) {
        if (!copied(*entry)) continue;
        Copy *copy = &all->each[all->n++];
        *copy = {copy, to, entry->tensor};
        to += bytes_of(*entry->tensor);
    }
    return all;
}

// How many there are.
int64_t few_rows_count(const Copies *all) { return all->n; }

// Makes one of them; its tensor's weights are read from there from now on.
void few_rows_copy(Copies *all, int64_t i) {
    Copy *copy = &all->each[i];
    ggml_tensor *tensor = copy->tensor;
    reorder[tensor->type].make(tensor->data, columns_of(*tensor), blocks_of(*tensor), copy->values);
    tensor->extra = copy;
}

// Frees these copies; their model must still be there, and nothing may run.
void few_rows_drop(Copies *all) {
    for (int64_t i = 0; i < all->n; i++) all->each[i].tensor->extra = nullptr;
    munmap(all->values, all->bytes);
    free(all);
}

// Computes `op` if it is a multiplication by weights that are repacked and have a kernel, or fills a tensor, else leaves it
// to the library.
bool few_rows_forward(ggml_compute_params *params, ggml_tensor *op) {
    if (op->op == to_fill && op->type == 0 && filled(params, op)) return true;
    const ggml_tensor *weights = op->src[0], *rows = op->src[1];
    const bool experts = op->op == by_experts;
    if ((!experts && op->op != by_matrix) || weights->type < 0 || weights->type >= 40 || !repacked[weights->type].round ||
        rows->type != 0 || !weights->buffer || (!copy_of(weights) && type_of(weights->buffer) != repacked_weights) ||
        weights->ne[3] * rows->ne[3] != 1 || weights->ne[1] % 8 || (!experts && weights->ne[2] != 1))
        return library_forward(params, op);
    const auto &found = repacked[weights->type];
    found.multiply(params, op, experts, found.round);
    return true;
}

}
