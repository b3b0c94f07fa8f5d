#!/usr/bin/env python3
"""bench_fold.py - the folding ABI on a GPU against the published plugins' ways of doing it.

usage: bench_fold.py LIBEXFOLD_FOLD.SO BENCH_FOLD.SO [MORE-LIBEXFOLD-FOLD.SO ...]

Build first:  make fold-library
              nvcc -O3 -arch=sm_90 -shared -Xcompiler -fPIC -o BENCH_FOLD.SO tests/bench/bench_fold.cu

Every contestant is captured CALLS times into one CUDA graph, over as many sets of routes and
LAYERS sets of tables, and the graph is replayed REPEATS times on fresh routes; the figure is
the median replay over CALLS, in microseconds.  The floor is a kernel that does nothing, the
bandwidth a copy of 1 GiB, both of the same run.  Peers rank by weight alone, as the plugins do,
so ours is given the same rank.
"""
import ctypes
import statistics
import sys

import torch
import triton
import triton.language as tl

CALLS, LAYERS, REPEATS = 64, 16, 30
NEVER = 1e30
ABI = 2  # EXF_FOLD_ABI of include/exfold/fold.h


# The structs are those of API 1.1, which every library of the ABI takes, so that older ones can stand beside this one.
class Routes(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("weights", ctypes.c_void_p), ("id_type", ctypes.c_int),
                ("weight_type", ctypes.c_int), ("rows", ctypes.c_int), ("width", ctypes.c_int), ("count", ctypes.c_void_p),
                ("mask", ctypes.c_void_p), ("reserved", ctypes.c_int * 4)]  # API 1.1: zeros for count and mask


class Tables(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in ("coeff", "loss", "norms", "cosine", "rms")] + [
        ("n_experts", ctypes.c_int), ("reserved_int", ctypes.c_int), ("reserved", ctypes.c_void_p * 6)]


class PrefillOptions(ctypes.Structure):
    _fields_ = [("keep", ctypes.c_int), ("rank", ctypes.c_int), ("max_loss", ctypes.c_float), ("rescale", ctypes.c_int),
                ("confidence", ctypes.c_int), ("ridge", ctypes.c_float), ("reserved", ctypes.c_int * 10)]


class DecodeOptions(ctypes.Structure):
    _fields_ = [("pool", ctypes.c_int), ("importance", ctypes.c_int), ("max_loss", ctypes.c_float), ("drop", ctypes.c_int),
                ("ridge", ctypes.c_float), ("reserved", ctypes.c_int * 11)]


class MembersOptions(ctypes.Structure):
    """exf_fold_decode_options of API 1.2, which has a size."""
    _fields_ = [("size", ctypes.c_uint32), ("importance", ctypes.c_int), ("max_loss", ctypes.c_float), ("drop", ctypes.c_int),
                ("ridge", ctypes.c_float), ("fallback", ctypes.c_int), ("candidates", ctypes.c_int), ("pool", ctypes.c_int),
                ("members", ctypes.c_void_p), ("reserved", ctypes.c_int * 6)]


def load(path):
    """A libexfold_fold whose structs are those above."""
    library = ctypes.CDLL(path)
    if not hasattr(library, "exf_fold_abi") or library.exf_fold_abi() != ABI:
        sys.exit(f"{path} is no libexfold_fold of ABI {ABI}: make fold-library builds one")
    return library


# ---- peers in Triton: the Qwen3 plugin's launches ---------------------------------------------

@triton.jit
def clear_kernel(importance, n_experts, BLOCK: tl.constexpr):
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(importance + e, 0.0, mask=e < n_experts)


@triton.jit
def add_kernel(w, ids, norms, importance, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    e = tl.load(ids + i, mask=ok, other=0)
    tl.atomic_add(importance + e, tl.load(w + i, mask=ok, other=0.0) * tl.load(norms + e, mask=ok, other=0.0), mask=ok)


@triton.jit
def choose_kernel(importance, pool, n_experts, D: tl.constexpr, BLOCK: tl.constexpr):
    e = tl.arange(0, BLOCK)
    bits = tl.load(importance + e, mask=e < n_experts, other=0.0).to(tl.uint32, bitcast=True).to(tl.uint64)
    best = tl.topk((bits << 32) | (BLOCK - 1 - e).to(tl.uint64), D)
    tl.store(pool + tl.arange(0, D), (BLOCK - 1 - (best & 0xFFFFFFFF)).to(tl.int32))


@triton.jit
def remap_kernel(w, ids, pool, coeff, loss, out_w, out_ids, rows, n_experts, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = row < rows
    position = tl.arange(0, D)
    members = tl.load(pool + position)
    for k in tl.static_range(K):
        e = tl.load(ids + row * K + k, mask=ok, other=0)
        mine = tl.load(w + row * K + k, mask=ok, other=0.0)
        inside = tl.sum((e[:, None] == members[None, :]).to(tl.int32), axis=1) > 0
        cost = tl.load(loss + e[:, None] * n_experts + members[None, :], mask=ok[:, None], other=3.0e30)
        to = tl.load(pool + tl.argmin(cost, axis=1))
        s = tl.load(coeff + e * n_experts + to, mask=ok, other=0.0)
        s = tl.where(tl.min(cost, axis=1) < 1.0e30, s, 0.0)
        tl.store(out_w + row * K + k, tl.where(inside, mine, mine * s), mask=ok)
        tl.store(out_ids + row * K + k, tl.where(inside, e, to), mask=ok)


@triton.jit
def prefill_kernel(w, ids, coeff, loss, out_w, out_ids, rows, n_experts, K: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = row < rows
    at = tl.arange(0, P)
    kept_w = tl.load(w + row[:, None] * K + at[None, :], mask=ok[:, None], other=0.0)
    kept = tl.load(ids + row[:, None] * K + at[None, :], mask=ok[:, None], other=0)
    for k in tl.static_range(P, K):
        e = tl.load(ids + row * K + k, mask=ok, other=0)
        mine = tl.load(w + row * K + k, mask=ok, other=0.0)
        cost = tl.load(loss + e[:, None] * n_experts + kept, mask=ok[:, None], other=3.0e30)
        to = tl.argmin(cost, axis=1)
        target = tl.load(ids + row * K + to, mask=ok, other=0)
        s = tl.load(coeff + e * n_experts + target, mask=ok, other=0.0)
        s = tl.where(tl.min(cost, axis=1) < 1.0e30, s, 0.0)
        kept_w += tl.where(at[None, :] == to[:, None], (mine * s)[:, None], 0.0)
    tl.store(out_w + row[:, None] * P + at[None, :], kept_w, mask=ok[:, None])
    tl.store(out_ids + row[:, None] * P + at[None, :], kept, mask=ok[:, None])


# ---- the harness ---------------------------------------------------------------------------------

class Case:
    """Routes of CALLS batches, tables of LAYERS layers, and where results go."""

    def __init__(self, rows, width, keep, n_experts, seed=1):
        g = torch.Generator(device="cuda").manual_seed(seed)
        self.rows, self.width, self.keep, self.n_experts = rows, width, keep, n_experts
        self.calls = min(CALLS, max(1, (1 << 26) // (rows * width)))
        scores = torch.randn(self.calls, rows, n_experts, generator=g, device="cuda") if rows * n_experts * self.calls < (1 << 28) else None
        parts = []
        for i in range(self.calls):
            s = scores[i] if scores is not None else torch.randn(rows, n_experts, generator=g, device="cuda")
            s = s + torch.linspace(1, -1, n_experts, device="cuda")[torch.randperm(n_experts, generator=g, device="cuda")]
            top = torch.topk(torch.softmax(s, -1), width, dim=-1)
            parts.append((top.values.contiguous(), top.indices.int().contiguous()))
        self.w0 = torch.stack([p[0] for p in parts])
        self.ids0 = torch.stack([p[1] for p in parts])
        del scores
        self.w, self.ids = self.w0.clone(), self.ids0.clone()
        self.out_w = torch.zeros(self.calls, rows, keep, device="cuda")
        self.out_ids = torch.zeros(self.calls, rows, keep, dtype=torch.int32, device="cuda")
        shape = (LAYERS, n_experts, n_experts)
        self.coeff = torch.randn(shape, generator=g, device="cuda")
        self.loss = torch.rand(shape, generator=g, device="cuda")
        self.loss[torch.rand(shape, generator=g, device="cuda") < 0.1] = NEVER
        self.loss.diagonal(dim1=1, dim2=2).fill_(NEVER)
        v = torch.nn.functional.normalize(torch.randn(LAYERS, n_experts, 32, generator=g, device="cuda"), dim=-1)
        self.cosine = (v @ v.transpose(1, 2)).contiguous()
        self.norms = 0.5 + torch.rand(LAYERS, n_experts, generator=g, device="cuda")

    def restore(self):
        self.w.copy_(self.w0)
        self.ids.copy_(self.ids0)

    def structs(self, i):
        layer = i % LAYERS
        io = Routes(self.ids[i].data_ptr(), self.w[i].data_ptr(), 0, 0, self.rows, self.width)
        out = Routes(self.out_ids[i].data_ptr(), self.out_w[i].data_ptr(), 0, 0, self.rows, self.keep)
        t = Tables(self.coeff[layer].data_ptr(), self.loss[layer].data_ptr(), self.norms[layer].data_ptr(), self.cosine[layer].data_ptr(),
                   self.norms[layer].data_ptr(), self.n_experts)
        return io, out, t


def timed(case, call):
    """Median, least and largest microseconds of call(i) in a graph of case.calls of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        case.restore()
        for i in range(min(case.calls, 3)):
            call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(case.calls):
            call(i)
    us = []
    for _ in range(REPEATS + 5):
        case.restore()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        us.append(start.elapsed_time(end) * 1000 / case.calls)
    us = us[5:]
    return statistics.median(us), min(us), max(us)


def copy_bandwidth():
    a = torch.empty(1 << 28, device="cuda")
    a.normal_()
    b = torch.empty_like(a)
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        b.copy_(a)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return 2 * a.numel() * 4 / (statistics.median(times) * 1e-3)


def pointer(t):
    return ctypes.c_void_p(t.data_ptr())


def stream_now():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def decode_contestants(case, pool, libs, bench):
    c, n = case, case.rows * case.width
    importance = torch.zeros(case.n_experts, device="cuda")
    members = torch.zeros(pool, dtype=torch.int32, device="cuda")
    o = DecodeOptions(pool, 0, NEVER, 0, 0.01)
    statics = (torch.randint(0, case.n_experts, (case.n_experts,), dtype=torch.int32, device="cuda"), torch.rand(case.n_experts, device="cuda"))

    def ours(lib, name):
        def call(i):
            io, _, t = c.structs(i)
            status = getattr(lib, name)(ctypes.byref(io), ctypes.byref(t), ctypes.byref(o), stream_now())
            assert status == 0, status
        return call

    count, mask = torch.full((1,), c.rows, dtype=torch.int32, device="cuda"), torch.ones(c.rows, dtype=torch.uint8, device="cuda")
    given = torch.randperm(c.n_experts, device="cuda")[:pool].int().contiguous()
    fixed = MembersOptions(0x80000000 | ctypes.sizeof(MembersOptions), 0, NEVER, 0, 0.01, 0, 0, pool, given.data_ptr())

    def ours_padded(i):
        io, _, t = c.structs(i)
        io.count, io.mask = count.data_ptr(), mask.data_ptr()
        assert libs[0][1].exf_fold_decode_cuda(ctypes.byref(io), ctypes.byref(t), ctypes.byref(o), stream_now()) == 0

    def ours_members(name):
        def call(i):
            io, _, t = c.structs(i)
            assert getattr(libs[0][1], name)(ctypes.byref(io), ctypes.byref(t), ctypes.byref(fixed), stream_now()) == 0
        return call

    def ours_static(i):
        io, _, _ = c.structs(i)
        assert libs[0][1].exf_fold_decode_static_cuda(ctypes.byref(io), pointer(statics[0]), pointer(statics[1]), c.n_experts, stream_now()) == 0

    def remap(i):
        layer, rows = i % LAYERS, 64
        remap_kernel[(triton.cdiv(c.rows, rows),)](c.w[i], c.ids[i], members, c.coeff[layer], c.loss[layer], c.out_w[i], c.out_ids[i], c.rows,
                                                   c.n_experts, K=c.width, D=pool, ROWS=rows, num_warps=4)

    def add_up(i):
        clear_kernel[(triton.cdiv(c.n_experts, 128),)](importance, c.n_experts, BLOCK=128, num_warps=4)
        add_kernel[(triton.cdiv(n, 256),)](c.w[i], c.ids[i], c.norms[i % LAYERS], importance, n, BLOCK=256, num_warps=4)

    def plugin_triton(i):
        add_up(i)
        choose_kernel[(1,)](importance, members, c.n_experts, D=pool, BLOCK=c.n_experts, num_warps=4)
        remap(i)

    def plugin_topk(i):
        add_up(i)
        members.copy_(torch.topk(importance, pool).indices)
        remap(i)

    def plugin_fused(i):
        layer = i % LAYERS
        bench.bench_peer_decode(pointer(c.w[i]), pointer(c.ids[i]), pointer(c.coeff[layer]), pointer(c.loss[layer]), pointer(c.norms[layer]),
                                pointer(c.out_w[i]), pointer(c.out_ids[i]), n, c.n_experts, pool, stream_now())

    def pytorch(i):
        layer, w, ids = i % LAYERS, c.w[i], c.ids[i].long()
        total = torch.zeros(c.n_experts, device="cuda").index_add_(0, ids.flatten(), (w * c.norms[layer][ids]).flatten())
        kept = torch.topk(total, pool).indices
        least, at = c.loss[layer][:, kept].min(dim=1)
        target = kept[at]
        scale = torch.where(least < NEVER, c.coeff[layer].gather(1, target[:, None])[:, 0], 0.0)
        every = torch.arange(c.n_experts, device="cuda")
        inside = torch.zeros(c.n_experts, dtype=torch.bool, device="cuda").index_fill_(0, kept, True)
        c.out_ids[i].copy_(torch.where(inside, every, target)[ids])
        c.out_w[i].copy_(w * torch.where(inside, 1.0, scale)[ids])

    table = [(f"ours {label}", ours(lib, "exf_fold_decode_cuda"), True) for label, lib in libs]
    table += [(f"ours, joint {label}", ours(lib, "exf_fold_decode_joint_cuda"), True) for label, lib in libs]
    if hasattr(libs[0][1], "exf_fold_api"):
        table += [("ours, count and mask", ours_padded, True), ("ours, members", ours_members("exf_fold_decode_cuda"), True),
                  ("ours, joint, members", ours_members("exf_fold_decode_joint_cuda"), True)]
    table += [("ours, static", ours_static, True), ("plugin, 4 Triton kernels", plugin_triton, False), ("plugin, torch.topk", plugin_topk, False),
              ("plugin, 1 CUDA block", plugin_fused, False), ("PyTorch", pytorch, False)]
    return table


def prefill_contestants(case, libs, bench):
    c = case
    o, by_norm = PrefillOptions(case.keep, 1, NEVER, 0, 0, 0.01), PrefillOptions(case.keep, 0, NEVER, 0, 0, 0.01)

    def ours(lib, name, o=o):
        def call(i):
            io, out, t = c.structs(i)
            status = getattr(lib, name)(ctypes.byref(io), ctypes.byref(out), ctypes.byref(t), ctypes.byref(o), stream_now())
            assert status == 0, status
        return call

    def plugin_triton(i):
        layer = i % LAYERS
        prefill_kernel[(triton.cdiv(c.rows, 128),)](c.w[i], c.ids[i], c.coeff[layer], c.loss[layer], c.out_w[i], c.out_ids[i], c.rows, c.n_experts,
                                                    K=c.width, P=c.keep, ROWS=128, num_warps=4)

    def plugin_thread(i):
        layer = i % LAYERS
        bench.bench_peer_prefill(pointer(c.w[i]), pointer(c.ids[i]), pointer(c.coeff[layer]), pointer(c.loss[layer]), pointer(c.out_w[i]),
                                 pointer(c.out_ids[i]), c.rows, c.n_experts, c.keep, stream_now())

    def pytorch(i):
        layer, w, ids = i % LAYERS, c.w[i], c.ids[i].long()
        w, order = w.sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, order)
        kept, rest = ids[:, :c.keep], ids[:, c.keep:]
        least, at = c.loss[layer][rest[:, :, None], kept[:, None, :]].min(dim=2)
        scale = torch.where(least < NEVER, c.coeff[layer][rest, kept.gather(1, at)], 0.0)
        c.out_ids[i].copy_(kept)
        c.out_w[i].copy_(w[:, :c.keep].scatter_add(1, at, w[:, c.keep:] * scale))

    table = [(f"ours {label}", ours(lib, "exf_fold_prefill_cuda"), False) for label, lib in libs]
    table += [(f"ours, rank w h {label}", ours(lib, "exf_fold_prefill_cuda", by_norm), False) for label, lib in libs]
    table += [(f"ours, joint {label}", ours(lib, "exf_fold_prefill_joint_cuda"), False) for label, lib in libs]
    table += [("plugin, Triton", plugin_triton, False), ("plugin, CUDA thread", plugin_thread, False), ("PyTorch", pytorch, False)]
    return table


def result(case, call, in_place):
    case.restore()
    case.out_w.zero_()
    case.out_ids.zero_()
    call(0)
    torch.cuda.synchronize()
    return (case.ids[0].clone(), case.w[0].clone()) if in_place else (case.out_ids[0].clone(), case.out_w[0].clone())


def report(title, case, contestants, moved, floor_shape, bench, bandwidth):
    floor = timed(case, lambda i: bench.bench_nothing(floor_shape[0], floor_shape[1], stream_now()))
    print(f"\n{title}: floor (empty kernel, {floor_shape[0]} x {floor_shape[1]}) {floor[0]:.2f} us, {moved / 1e3:.0f} kB moved at least")
    reference, ours_us = None, None
    for name, call, in_place in contestants:
        try:
            ids, w = result(case, call, in_place)
        except Exception as error:  # a Triton without topk, say: the others are still worth having
            print(f"  {name:28s} did not run: {type(error).__name__}: {error}")
            continue
        if reference is None:
            reference = (ids, w)
        same = (ids == reference[0]).float().mean().item()
        near = torch.isclose(w, reference[1], rtol=1e-4, atol=1e-6).float().mean().item()
        us = timed(case, call)
        ours_us = us[0] if ours_us is None else ours_us
        print(f"  {name:28s} {us[0]:8.2f} us  [{us[1]:.2f}, {us[2]:.2f}]  x{us[0] / ours_us:5.2f}  {100 * moved / us[0] * 1e6 / bandwidth:5.1f} % of copy"
              f"  ids {100 * same:.1f} %  weights {100 * near:.1f} % as ours", flush=True)


def main():
    bench = ctypes.CDLL(sys.argv[2])
    libs = [("" if p == sys.argv[1] else p.split("/")[-1], load(p)) for p in [sys.argv[1]] + sys.argv[3:]]
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: copy of 1 GiB {bandwidth / 1e12:.2f} TB/s (read + written); torch {torch.__version__}, triton {triton.__version__}")
    for n_experts in (128, 256):
        case = Case(256, 8, 8, n_experts)
        report(f"decode [256, 8], E {n_experts}, D {n_experts // 2}", case, decode_contestants(case, n_experts // 2, libs, bench), 256 * 8 * 16, (1, 1024), bench,
               bandwidth)
    for rows in (8192, 1 << 20):
        for n_experts in (128, 256):
            case = Case(rows, 8, 4, n_experts)
            report(f"prefill [{rows}, 8] to 4, E {n_experts}", case, prefill_contestants(case, libs, bench), rows * 12 * 8, (rows * 8 // 128, 128), bench, bandwidth)
            del case
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
