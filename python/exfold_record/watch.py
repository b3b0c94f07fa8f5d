"""Hooks on a model of transformers: on its experts, called as (hidden, top_k_index, top_k_weights), and on its decoder layers."""
import re

import torch

from .library import RecordError


def flat(x):
    return x.reshape(-1, x.shape[-1])


class Watch:
    """Watches a model; `seen` is (layers, experts, top_k, width) after the first forward, and rows go to `rows` if it is set.

        with Watch(model) as watch:
            model(ids[:1, :8], use_cache=False)
            watch.rows = Rows(Recording("out/statistics.h5", *watch.seen, facts))
    """

    def __init__(self, model):
        self.rows, self.found, self.scale, self.handles, self.busy, self.muted = None, {}, {}, [], False, False
        experts, layers = {}, {}
        for name, module in model.named_modules():
            layer = re.search(r"(?:^|\.)layers\.(\d+)(\.|$)", name)
            if layer and not layer[2]:
                layers[int(layer[1])] = module
            elif layer and re.search(r"\.experts$", name) and "shared" not in name:
                experts[int(layer[1])] = module, model.get_submodule(name.rpartition(".")[0])
        if not experts:
            raise RecordError(f"{type(model).__name__} has no module named layers.<number>...experts, whose outputs could be recorded")
        for number, (module, block) in experts.items():
            self.handles += [module.register_forward_pre_hook(self.before(number), with_kwargs=True),
                             module.register_forward_hook(self.after, with_kwargs=True),
                             block.register_forward_hook(self.around(number, block), with_kwargs=True)]
            if number in layers:
                self.handles.append(layers[number].register_forward_hook(self.behind(number)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    @property
    def seen(self):
        shapes = set(self.found.values())
        if len(shapes) != 1:
            raise RecordError(f"layers have {len(shapes)} shapes of experts ({sorted(shapes)}), statistics have one")
        return (sorted(self.found), *shapes.pop())

    def before(self, number):
        def hook(module, args, kwargs):
            if self.busy:
                return
            given = [*args, *(kwargs[k] for k in ("hidden_states", "top_k_index", "top_k_weights") if k in kwargs)]
            if len(given) != 3 or given[1].is_floating_point():
                raise RecordError(f"layer {number}: {type(module).__name__} is not called as (hidden, top_k_index, top_k_weights), "
                                  "from which its outputs could be told apart")
            hidden, ids, weights = (flat(x) for x in given)

            def slots(at, chosen):
                x = hidden[at]
                one = torch.ones(len(at) * ids.shape[1], 1, dtype=weights.dtype, device=ids.device)
                self.busy = True
                try:
                    y = module(x.repeat_interleave(ids.shape[1], 0), chosen.reshape(-1, 1), one)
                finally:
                    self.busy = False
                return flat(y).reshape(len(at), ids.shape[1], -1)

            if number not in self.found:
                width = slots(torch.arange(1, device=ids.device), ids[:1]).shape[-1]
                self.found[number] = experts_of(module), ids.shape[1], width
            elif self.rows:
                self.rows.outputs(number, ids, weights.float() * self.scale[number], slots)
        return hook

    def after(self, _module, _args, _kwargs, output):
        """While a block is measured, its experts put out nothing."""
        return torch.zeros_like(output) if self.muted else None

    def around(self, number, block):
        """Finds, once, by what a block multiplies what its experts put out together: with them muted, the rest is left."""
        def hook(_block, args, kwargs, output):
            if self.muted or number in self.scale or number not in self.found:
                return
            routed = []
            keep = block.experts.register_forward_hook(lambda _m, _a, y: routed.append(flat(y).double()), prepend=True)
            self.muted = self.busy = True
            try:
                rest = block(*args, **kwargs)
            finally:
                self.muted = self.busy = False
                keep.remove()
            whole, rest = (flat(x[0] if isinstance(x, tuple) else x).double() for x in (output, rest))
            routed = routed[0]
            self.scale[number] = 1.0
            if whole.shape == routed.shape:
                measured = float(((whole - rest) * routed).sum() / routed.square().sum())
                named = getattr(block, "routed_scaling_factor", 1.0)
                self.scale[number] = next((x for x in (1.0, float(named or 1)) if abs(measured / x - 1) < 0.02), None)
                if self.scale[number] is None:
                    raise RecordError(f"layer {number}: {type(block).__name__} multiplies what its experts put out by {measured:.4g}, "
                                      "which no routed_scaling_factor of it says")
        return hook

    def behind(self, number):
        def hook(_module, _args, output):
            if self.rows and not self.busy:
                self.rows.stream(number, output[0] if isinstance(output, tuple) else output)
        return hook


def experts_of(module):
    """How many experts a module has: it says so, or its first tensor of three axes does."""
    n = getattr(module, "num_experts", None) or next((p.shape[0] for p in module.parameters() if p.dim() == 3), None)
    if not n:
        raise RecordError(f"{type(module).__name__} does not say how many experts it has")
    return int(n)
