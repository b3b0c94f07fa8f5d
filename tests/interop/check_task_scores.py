"""Holds examples/transformers/score_tasks.py to scores that are made here, of the same texts, by transformers alone.

usage: check_task_scores.py BUILD WORK-DIRECTORY TABLES.safetensors     last line: "N passed, N failed"
Two tasks of the harness on local files, which download nothing: which of four texts goes on as the document does (accuracy), and the
bits that a byte of the texts takes.  The demo model runs them as it is, and folded.
"""
import json
import math
import os
import pathlib
import subprocess
import sys

os.environ["OMP_NUM_THREADS"] = "1"  # threads of a model this small wait for each other longer than they compute
import torch  # noqa: E402

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "examples/transformers"))
import fold_experts  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()
build, work, tables = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
library = str(build / f"libexfold_fold.so.{fold_experts.ABI}")
script = root / "examples/transformers/score_tasks.py"
VARIANTS = ("P2", "P1")
passed = failed = 0


def note(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(("  ok      " if good else "  FAILED  ") + what)


# The demo model with an end of text, which the harness puts before every text, and two tasks.
model_directory, tasks = work / "model", work / "tasks"
model_directory.mkdir(parents=True)
tasks.mkdir()
for file in (root / "examples/demo-model").glob("*"):
    if file.name in ("config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"):
        (model_directory / file.name).symlink_to(file)
(model_directory / "tokenizer_config.json").write_text(json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}))
texts = [json.loads(line)["text"][:400] for line in (root / "examples/demo-corpus.jsonl").read_text().splitlines() if line.strip()]
# The harness renders a document by Jinja, which takes a newline at the end: contexts end, and choices begin, between two words.
ends = [" " + " ".join(text[120:200].split()) for text in texts]
rows = [{"context": text[:120].rstrip(), "choices": [ends[(i + k) % len(ends)] for k in (0, 3, 7, 11)], "label": 0, "text": text}
        for i, text in enumerate(texts)]
(tasks / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
source = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {tasks / 'rows.jsonl'}}}}}\ntest_split: test\n"
(tasks / "goes_on.yaml").write_text("task: goes_on\n" + source + "output_type: multiple_choice\ndoc_to_text: '{{context}}'\n"
                                    "doc_to_choice: '{{choices}}'\ndoc_to_target: label\ntarget_delimiter: ''\nmetric_list: [{metric: acc}]\n")
(tasks / "bits.yaml").write_text("task: bits\n" + source + "output_type: loglikelihood_rolling\ndoc_to_text: ''\n"
                                 "doc_to_target: '{{text}}'\nmetric_list: [{metric: bits_per_byte}]\n")


def run(output, *more):
    command = [sys.executable, script, "--model", model_directory, "--tables", tables, "--variants", " ".join(VARIANTS), "--tasks",
               "goes_on,bits", "--task-directory", tasks, "--batch-size", "1", "--dtype", "float32", "--library", library,
               "--output", output, *more]
    return subprocess.run([str(x) for x in command], capture_output=True, text=True)


tokenizer = transformers.AutoTokenizer.from_pretrained(model_directory)
model = transformers.AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32).eval()


@torch.no_grad()
def log_likelihood(context, continuation):
    """Of the continuation's tokens after those of the context; context "": after an end of text."""
    whole = tokenizer.encode(context + continuation, add_special_tokens=False)
    first = len(tokenizer.encode(context, add_special_tokens=False)) if context else 0
    ids = whole if context else [tokenizer.eos_token_id] + whole
    first += not context
    scores = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return sum(float(scores[i - 1, ids[i]]) for i in range(first, len(ids)))


def expected():
    right = sum(max(range(4), key=lambda k: log_likelihood(row["context"], row["choices"][k])) == 0 for row in rows)
    bits = -sum(log_likelihood("", row["text"]) for row in rows) / sum(len(row["text"].encode()) for row in rows) / math.log(2)
    return right / len(rows), bits


output = work / "scores.json"
done = run(output)
note(done.returncode == 0, "score_tasks.py runs" + ("" if done.returncode == 0 else ": " + done.stderr[-2000:]))
scores = json.loads(output.read_text())["scores"] if output.exists() else {}
note(list(scores) == ["original", *VARIANTS], "the original stands beside each variant")
for name in scores:
    folding = fold_experts.Folding(model, tables, name, library=library) if name != "original" else None
    accuracy, bits = expected()
    if folding:
        folding.remove()
    here = scores[name]
    found = here["goes_on acc"]["value"]
    note(abs(found - accuracy) < 1e-9, f"{name}: accuracy {accuracy:.4f}, the script says {found:.4f}")
    note(abs(here["bits bits_per_byte"]["value"] - bits) < 1e-4 * bits, f"{name}: {bits:.5f} bits a byte")
if len(scores) == 3:
    bits = [scores[name]["bits bits_per_byte"]["value"] for name in scores]
    note(bits[0] < bits[1] < bits[2], "folding costs bits, more of them costs more")
note("original" in done.stdout and "goes_on acc" in done.stdout, "a line for each score")
done = run(output)
note(done.returncode != 0 and "exists" in done.stderr, "an output that exists is refused")
done = run(work / "typo.json", "--variants", "P2 P2:rank=best")
note(done.returncode != 0 and "rank=best, expected" in done.stderr and not (work / "typo.json").exists() and "goes_on" not in done.stdout,
     "a wrong variant is refused before anything is scored, and leaves no file: " + done.stderr.splitlines()[-1])
bare = dict(os.environ, PYTHONPATH=os.environ.get("PYTHONPATH", "").replace("tasks-python", "nowhere"))
done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=bare)
note(done.returncode != 0 and "pip install" in done.stderr, "without the harness it says how to install it")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
