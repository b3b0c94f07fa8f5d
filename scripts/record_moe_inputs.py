#!/usr/bin/env python3
"""Record what the MoE blocks of a transformers model see, for exfold-capture --moe-inputs.

    python3 scripts/record_moe_inputs.py MODEL TEXT.jsonl OUT.safetensors [--sequences 8] [--max-tokens 1024]
    exfold-capture recipe.yaml --moe-inputs OUT.safetensors

MODEL is a checkpoint directory or a hub name; TEXT.jsonl has one {"text": ...}
per line, each of which becomes one sequence.  Needs torch, transformers and
safetensors.

How it works: a forward pre-hook on every MoE block keeps the block's input,
which is the hidden state after the norm, the very tensor that router and experts
get.  Everything else follows from that input and the checkpoint's router and
expert tensors, so it is all that must be recorded.  The same few lines work
inside a serving engine: hook the block, keep its input, write the file below.

    layers.<l>.moe_input  [T, H]   bf16 (or f16, f32), rows of all sequences in order
    sequence_lengths      [N] i32  sums to T
    token_ids             [T] i32  only needed where layers route by token

Routes (layers.<l>.topk_ids [T, K] i32 and topk_weights [T, K]) may be added to
pin what the engine chose, near-ties and all; without them exfold-capture runs the
checkpoint's router in float32.  Weights are those that multiply the experts'
outputs, after renormalisation and scaling.

Memory: T x H x layers x 2 bytes on the host (32 x 1024 tokens of Qwen3-30B-A3B:
6.4 GB).  Record some layers at a time with --layers where that is too much; a
file may hold any of them.
"""
import argparse

from render_chat import Failure, check_target, reaching, read_lines, run, write_file


def moe_blocks(model):
    """(layer number, module) of every decoder layer whose feed-forward part has experts."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model
    for number, layer in enumerate(decoder.layers):
        block = getattr(layer, "mlp", None)
        if block is None:
            block = getattr(layer, "ffn", None) or getattr(layer, "block_sparse_moe", None)
        if block is not None and hasattr(block, "experts"):
            yield number, block


class Recorder:
    """Keeps the input of each chosen block, one [T, H] piece per call."""

    def __init__(self, model, layers):
        self.rows = {}
        self.hooks = []
        for number, block in moe_blocks(model):
            if layers is None or number in layers:
                self.hooks.append(block.register_forward_pre_hook(self.hook(number), with_kwargs=True))
        if not self.hooks:
            raise Failure(3, "no MoE block was found: adapt moe_blocks() to this model")

    def hook(self, number):
        def keep(_module, args, kwargs):
            x = args[0] if args else kwargs["hidden_states"]
            self.rows.setdefault(number, []).append(x.detach().reshape(-1, x.shape[-1]).cpu())
        return keep

    def tensors(self):
        import torch

        return {f"layers.{number}.moe_input": torch.cat(pieces) for number, pieces in self.rows.items()}


def read_texts(path, count):
    texts = []
    for where, row in read_lines(path):
        if not isinstance(row, dict) or "text" not in row:
            raise Failure(3, f'{where}: has no member "text"')
        texts.append(row["text"])
    return texts[:count]


def layer_set(text):
    """"0,3,8-11" -> {0, 3, 8, 9, 10, 11}; "all" -> None."""
    if text == "all":
        return None
    chosen = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen.update(range(int(first), int(last or first) + 1))
    return chosen


def load(name, dtype):
    """The tokenizer and the model of a checkpoint directory or a hub name."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        return tokenizer, AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype), device_map="auto").eval()
    except Exception as e:  # the library raises whatever its parts do
        raise reaching(name, e) from e


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("texts")
    p.add_argument("out")
    p.add_argument("--sequences", type=int, default=8)
    p.add_argument("--max-tokens", type=int, default=1024)
    p.add_argument("--layers", type=layer_set, default=None, help="all (default), or numbers like 0,3,8-11")
    p.add_argument("--dtype", default="bfloat16", help="of the model and the recording")
    args = p.parse_args()
    check_target(args.out)
    texts = read_texts(args.texts, args.sequences)
    import torch
    from safetensors.torch import save

    tokenizer, model = load(args.model, args.dtype)
    recorder = Recorder(model, args.layers)
    tokens, lengths = [], []
    with torch.no_grad():
        for text in texts:
            # One sequence at a time: no padding, so that every row is a token.
            ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=args.max_tokens).input_ids
            if ids.shape[1] == 0:
                continue
            model(ids.to(model.device), use_cache=False)
            tokens.append(ids[0].to(torch.int32))
            lengths.append(ids.shape[1])

    out = recorder.tensors()
    out["sequence_lengths"] = torch.tensor(lengths, dtype=torch.int32)
    out["token_ids"] = torch.cat(tokens)
    write_file(args.out, [save({name: t.contiguous() for name, t in out.items()})])
    print(f"{args.out}: {sum(lengths)} tokens in {len(lengths)} sequences, {len(recorder.rows)} layers")


if __name__ == "__main__":
    run(main)
