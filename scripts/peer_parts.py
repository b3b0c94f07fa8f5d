#!/usr/bin/env python3
"""The parts of a layer of Qwen3-30B-A3B's shape by the vendor's libraries: what a pass made of them could reach.

usage: peer_parts.py

Products by cuBLAS, attention by cuDNN and by flash attention, the experts' products by CUTLASS (torch._grouped_mm); four sequences
of 4096 tokens at a time, bfloat16, medians of 20.  What only moves numbers is counted at the rate of a copy, measured in the same
run: the least that a pass reads and writes between those products.  Prints a line a part, in ms per layer and sequence.
"""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BATCH, TOKENS, HIDDEN, HEADS, KV, WIDTH, EXPERTS, TOP_K, INNER = 4, 4096, 2048, 32, 4, 128, 128, 8, 768


def median_ms(f, n=20):
    for _ in range(3):
        f()
    times = []
    for _ in range(n):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        f()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[n // 2]


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def attention(backend):
    q, k, v = random(BATCH, HEADS, TOKENS, WIDTH), random(BATCH, KV, TOKENS, WIDTH), random(BATCH, KV, TOKENS, WIDTH)
    with sdpa_kernel(backend):
        return median_ms(lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)) / BATCH


def grouped(rows, width, out):
    x, w = random(rows, width), random(EXPERTS, width, out)
    ends = torch.arange(rows // EXPERTS, rows + 1, rows // EXPERTS, device="cuda", dtype=torch.int32)
    return median_ms(lambda: torch._grouped_mm(x, w, offs=ends)) / BATCH


def product(width, out):
    x, w = random(BATCH * TOKENS, width), random(width, out)
    return median_ms(lambda: x @ w) / BATCH


def main():
    a, b = random(8192, 8192), random(8192, 8192)
    rate = 2 * 8192**3 / median_ms(lambda: a @ b) / 1e9
    x = torch.empty(2**28, device="cuda")
    y = torch.empty_like(x)
    copy = 2 * 4 * 2**28 / median_ms(lambda: y.copy_(x)) / 1e6
    print(f"{torch.cuda.get_device_name()}: product {rate:.0f} TFLOP/s, copy {copy:.0f} GB/s")
    rows, half, full = BATCH * TOKENS * TOP_K, 2 * TOKENS * HIDDEN, 4 * TOKENS * HIDDEN
    qkv, routed = 2 * TOKENS * (HEADS + 2 * KV) * WIDTH, 2 * TOKENS * TOP_K * HIDDEN
    moved = {"two norms of hidden states": 2 * (full + half), "norms and rotation of q and k": 2 * qkv,
             "weighted sum of the experts, and its residual": routed + 2 * full, "statistics: every output once": routed}
    parts = {"q, k, v": product(HIDDEN, (HEADS + 2 * KV) * WIDTH), "o": product(HEADS * WIDTH, HIDDEN),
             "attention (cuDNN)": attention(SDPBackend.CUDNN_ATTENTION), "router": product(HIDDEN, EXPERTS),
             "experts, gate and up": grouped(rows, HIDDEN, 2 * INNER), "experts, down": grouped(rows, INNER, HIDDEN)}
    parts.update({name: bytes_ / copy / 1e6 for name, bytes_ in moved.items()})
    for name, ms in parts.items():
        print(f"  {ms:6.3f}  {name}")
    print(f"  {sum(parts.values()):6.3f}  all of these")
    print(f"  ({attention(SDPBackend.FLASH_ATTENTION):.3f} attention by flash attention)")


main()
