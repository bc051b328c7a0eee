"""Machine code by which the library multiplies repacked weights row by row, on x86-64.

Weights that are repacked (Q4_0, Q4_K and others: ggml-cpu, repack.cpp) are multiplied by four rows at once with a
`gemm` function, and by what is left over with a `gemv` function, which sums in another order. The first takes its four
rows interleaved, as a `quantize_mat` function wrote them. Both are called through the library's global offset table, so
others can stand in for them: one that writes four rows one after the other, as those of `gemv` are written, and one
that calls `gemv` for each. No function of the library does this, and Python is too slow for it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
import sys
from typing import Iterator, NamedTuple

# void quantize(const float *x, void *rows, int64_t k) { row(x, rows, 4 * k); }
#
#       endbr64
#       shl rdx, 2
#       jmp [rip + row]
#       .balign 8, 0xcc
# row:  .quad 0
QUANTIZE = bytes.fromhex("f30f1efa 48c1e202 ff250200 0000cccc")

# void gemm(int n, float *s, size_t bs, const char *vx, const char *vy, int nr, int nc) {
#     for (int left = nc, width; left > 0; left -= width, s += width, vx += width * (n >> shift) * weights)
#         for (int i = (width = min(32, left), 0); i < nr; i++)
#             gemv(n, s + i * bs, bs, vx, vy + i * (n >> shift) * values, 1, width);
# }
# 32 columns of weights stay in the processor's first cache for all rows.
#
#       endbr64
#       push rbx; push rbp; push r12; push r13; push r14; push r15
#       sub rsp, 72
#       mov [rsp+8], rdi; mov rbp, rsi; mov r15, rdx; mov r12, rcx; mov [rsp+16], r8; mov [rsp+24], r9
#       mov ebx, [rsp+128]
#       mov ecx, [rip + shift]; shr edi, cl
#       mov eax, edi; imul eax, [rip + values]; mov [rsp+32], rax
#       imul edi, [rip + weights]; mov [rsp+40], rdi
# columns:
#       mov eax, 32; cmp eax, ebx; cmovg eax, ebx; mov [rsp+48], rax
#       mov [rsp+56], rbp; mov r13, [rsp+16]; mov r14d, [rsp+24]
# rows: mov rax, [rsp+48]; mov [rsp], rax
#       mov edi, [rsp+8]; mov rsi, [rsp+56]; mov rdx, r15; mov rcx, r12; mov r8, r13; mov r9d, 1
#       call [rip + gemv]
#       lea rax, [r15*4]; add [rsp+56], rax; add r13, [rsp+32]
#       dec r14d; jg rows
#       mov rax, [rsp+48]; lea rbp, [rbp+rax*4]
#       mov rcx, rax; imul rcx, [rsp+40]; add r12, rcx
#       sub ebx, eax; jg columns
#       add rsp, 72
#       pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx
#       ret
#       .balign 8, 0xcc
# gemv: .quad 0
# shift: .quad 0
# values: .quad 0
# weights: .quad 0
GEMM = bytes.fromhex(
    "f30f1efa 53554154 41554156 41574883 ec484889 7c240848 89f54989 d74989cc 4c894424 104c894c"
    "24188b9c 24800000 008b0da9 000000d3 ef89f80f af05a600 00004889 4424200f af3da200 00004889"
    "7c2428b8 20000000 39d80f4f c3488944 24304889 6c24384c 8b6c2410 448b7424 18488b44 24304889"
    "04248b7c 2408488b 7424384c 89fa4c89 e14d89e8 41b90100 0000ff15 40000000 4a8d04bd 00000000"
    "48014424 384c036c 242041ff ce7fc248 8b442430 488d6c85 004889c1 480faf4c 24284901 cc29c37f"
    "8a4883c4 48415f41 5e415d41 5c5d5bc3"
)


class _Values(NamedTuple):
    """A type that rows are rounded to: values in a block as a power of two, bytes of a block."""

    shift: int
    size: int


Q8_0, Q8_K = _Values(5, 34), _Values(8, 292)
QUANTIZERS = {"ggml_quantize_mat_q8_0_4x8": "quantize_row_q8_0", "ggml_quantize_mat_q8_K_4x8": "quantize_row_q8_K"}
# Repacked weights: bytes of a column's block, and what rows are rounded to. The last three are repacked on ARM, and
# here where the library was told so (repacked_kernels.py).
WEIGHTS = {
    "q4_0_8x8_q8_0": (18, Q8_0),
    "iq4_nl_8x8_q8_0": (18, Q8_0),
    "mxfp4_8x8_q8_0": (17, Q8_0),
    "q4_K_8x8_q8_K": (144, Q8_K),
    "q2_K_8x8_q8_K": (84, Q8_K),
    "q5_K_8x8_q8_K": (176, Q8_K),
    "q6_K_8x8_q8_K": (210, Q8_K),
    "q8_0_4x8_q8_0": (34, Q8_0),
}


_pages: list[mmap.mmap] = []  # what the library calls stays mapped


@functools.cache
def stand_ins(library: ctypes.CDLL) -> dict[str, int]:
    """Functions of `library`, each with the address of the code that stands in for it.

    None for other processors, and on systems that execute nothing but files.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return {}
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start, places = ctypes.addressof(ctypes.c_char.from_buffer(page)), dict[str, int]()
    for name, text in _code(library):
        places[name] = start + page.tell()
        page.write(text)
    _pages.append(page)
    protection = ctypes.c_int(mmap.PROT_READ | mmap.PROT_EXEC)
    refused = ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(mmap.PAGESIZE), protection)
    return {} if refused else places


def _code(library: ctypes.CDLL) -> Iterator[tuple[str, bytes]]:
    """Functions that `library` has, and the code for each."""

    def address(name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

    for name, row in QUANTIZERS.items():
        if hasattr(library, name) and hasattr(library, row):
            yield name, QUANTIZE + struct.pack("<Q", address(row))
    for kind, (size, values) in WEIGHTS.items():
        gemm, gemv = f"ggml_gemm_{kind}", f"ggml_gemv_{kind}"
        if hasattr(library, gemm) and hasattr(library, gemv):
            yield gemm, GEMM + struct.pack("<4Q", address(gemv), values.shift, values.size, size)
