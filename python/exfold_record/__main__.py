"""The program: python3 -m exfold_record MODEL IDS.safetensors -o DIR."""
import argparse
import pathlib
import sys
import time

from .library import RecordError, Recording, Rows, Text, general_settings, model_facts


def options():
    p = argparse.ArgumentParser(prog="exfold_record", description="Records statistics.h5 of a mixture of experts while an engine "
                                "runs it; exfold-solve makes tables of them.")
    p.add_argument("model", help="checkpoint directory, as the engine takes it")
    p.add_argument("ids", help="text: exfold-calibrate --ids writes it, with the model's own tokenizer")
    p.add_argument("-o", "--output", required=True, metavar="DIR", help="directory that gets statistics.h5")
    p.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    p.add_argument("--dtype", default="auto", help="bfloat16, float32, or what the checkpoint says")
    p.add_argument("--device", default=None, help="of transformers: cuda if there is one, else cpu")
    p.add_argument("--step-tokens", type=int, default=4096, help="most tokens of a forward")
    p.add_argument("--part-tokens", type=int, default=65536, help="tokens after which the sums so far are saved")
    p.add_argument("--threads", type=int, default=0, help="that add up; 0: one for each processor, at most 16")
    p.add_argument("--tensor-parallel", type=int, default=1, help="ranks of vllm")
    p.add_argument("--trust-remote-code", action="store_true", help="run the checkpoint's own code")
    p.add_argument("-f", "--force", action="store_true", help="replace a statistics.h5 that is there")
    return p.parse_args()


class Progress:
    """Tells how far a run is, on stderr, at most every two seconds."""

    def __init__(self, tokens):
        self.tokens, self.done, self.ran, self.begun, self.told = tokens, 0, 0, time.monotonic(), 0.0

    def add(self, n, ran=True):
        self.done, self.ran = self.done + n, self.ran + n * ran
        now = time.monotonic() - self.begun
        if now - self.told > 2 or self.done == self.tokens:
            self.told = now
            left = f", {(self.tokens - self.done) * now / self.ran:.0f} s left" if self.ran and self.done < self.tokens else ""
            print(f"exfold_record: {self.done} of {self.tokens} tokens, {now:.0f} s{left}", file=sys.stderr)


def steps(text, part, most):
    """Batches of a part's sequences of one length, of at most so many tokens; of one sequence where that is more, as on a CPU, which
    gains nothing by more, and where a row's bits then depend on no other row."""
    order = sorted(range(len(part)), key=lambda i: (text.lengths[part[i]], i))
    while order:
        length = text.lengths[part[order[0]]]
        same = [i for i in order[:max(1, most // length)] if text.lengths[part[i]] == length]
        yield same
        order = order[len(same):]


def with_transformers(o, text):
    import numpy
    import torch
    import transformers

    from .watch import Watch

    device = o.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        o.model, dtype=o.dtype if o.dtype == "auto" else getattr(torch, o.dtype), trust_remote_code=o.trust_remote_code)
    model = model.to(device).eval()
    engine = f"transformers {transformers.__version__}, torch {torch.__version__}"
    facts = text.facts | model_facts(model.config, o.model, engine, model.dtype, device.partition(":")[0])
    progress = Progress(int(text.lengths.sum()))
    with torch.inference_mode(), Watch(model) as watch:
        model(torch.as_tensor(text.ids[0][:8], device=device)[None].long(), use_cache=False)
        facts = general_settings(*watch.seen[1:3]) | facts
        recording = Recording(pathlib.Path(o.output) / "statistics.h5", *watch.seen, facts, o.force, o.threads)
        print(f"exfold_record: {len(watch.seen[0])} layers of {watch.seen[1]} experts; their sums take "
              f"{recording.memory / 1e6:.0f} MB of memory", file=sys.stderr)
        watch.rows = Rows(recording)
        for part in text.parts:
            if recording.begin(text, part):
                progress.add(int(text.lengths[part].sum()), ran=False)
                continue
            for batch in steps(text, part, o.step_tokens if device != "cpu" else 0):
                n = int(text.lengths[part[batch[0]]])
                rows = numpy.arange(len(batch) * n)
                watch.rows.step(rows, numpy.repeat(batch, n), rows % n)
                ids = numpy.stack([text.ids[part[i]] for i in batch])
                model(torch.as_tensor(ids, device=device).long(), use_cache=False)
                progress.add(len(rows))
            watch.rows.step([], [], [])
            recording.end()
        print(f"exfold_record: digest {recording.close()}", file=sys.stderr)


def main():
    o = options()
    try:
        path = pathlib.Path(o.output) / "statistics.h5"
        if path.exists() and not o.force:
            raise RecordError(f"{path} is there; --force replaces it")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = Text(o.ids, o.part_tokens)
        if o.engine == "vllm":
            from exfold_vllm.record import run
            run(o, text)
        else:
            with_transformers(o, text)
        print(f"wrote {path}")
    except RecordError as error:
        sys.exit(f"exfold_record: error: {error}")


if __name__ == "__main__":
    main()
