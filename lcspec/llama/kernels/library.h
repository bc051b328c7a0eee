// What is known here of the library: its structures, up to what is used of them, and how its threads share work.

#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct ggml_compute_params { int ith, nth; size_t wsize; void *wdata; void *threadpool; };
struct ggml_tensor {
    int type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op, op_params[16], flags;
    ggml_tensor *src[10], *view_src;
    size_t view_offset;
    void *data;
    char name[64];
    void *extra;
};
struct Chosen { int32_t slot, row; };  // of an expert's rows
using Forward = bool(ggml_compute_params *, ggml_tensor *);
using Tiled = bool(const ggml_compute_params *, ggml_tensor *out);
using Experts = bool(const ggml_compute_params *, ggml_tensor *out, int64_t expert, int64_t n, const Chosen *, char *own);
using Multiply = bool(const ggml_compute_params *, int64_t m, int64_t n, int64_t k, const void *weights, int64_t pitch,
                      const void *rows, int64_t stride, void *out, int64_t next, int weights_type, int values_type,
                      int out_type);

#pragma GCC visibility push(hidden)
extern void (*set_part)(void *pool, int part);
extern int (*next_part)(void *pool, int count);
extern void (*wait_for_all)(void *pool);
#pragma GCC visibility pop

}

namespace {

// Parts of the work for each thread: at the end of each is lost what the processor read ahead.
constexpr int64_t PARTS = 4;

}  // namespace
