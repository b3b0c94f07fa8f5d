"""Scores a transformers model on tasks of lm-evaluation-harness, as it is and folded by ExFold's tables, side by side.

usage: score_tasks.py --model DIR --tables tables.safetensors --variants "P4:projector=joint P4+D64" --tasks arc_easy,mmlu
           [--task-directory DIR] [--limit N] [--batch-size N] [--device cpu] [--dtype auto] [--library FILE] [--output FILE.json]

A task of the harness is downloaded when it is first used; --task-directory adds your own (a YAML file each, on local JSON lines).
Tasks by log-likelihood call the model with whole texts, which is prefill: their scores tell of P.  Tasks that generate call it
token by token after the prompt: there D folds, each batch being one decode batch, so --batch-size is the number of sequences that
decode side by side.  Needs lm-eval, accelerate, transformers and PyTorch.
"""
import argparse
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
try:
    import lm_eval
    import lm_eval.tasks
    import transformers
    from lm_eval.models.huggingface import HFLM
except ImportError as why:
    sys.exit(f"score_tasks: {why}; install the harness beside transformers: pip install 'lm-eval[hf]'")
import fold_experts  # noqa: E402


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="checkpoint directory, with its tokenizer")
    parser.add_argument("--tables", required=True, help="tables.safetensors, as exfold-export writes it")
    parser.add_argument("--variants", required=True, help="variants as exfold-validate spells them, parted by blanks")
    parser.add_argument("--tasks", required=True, help="names of tasks, parted by commas")
    parser.add_argument("--task-directory", help="directory with tasks of your own")
    parser.add_argument("--limit", type=int, help="the first so many samples of each task")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences in a batch; default: 8")
    parser.add_argument("--device", default="cpu", help="as PyTorch names it; default: cpu")
    parser.add_argument("--dtype", default="auto", help="of the weights: auto, float32, bfloat16; default: the checkpoint's")
    parser.add_argument("--library", help="libexfold_fold; default: $EXFOLD_FOLD_LIBRARY, then where libraries are")
    parser.add_argument("--output", help="JSON file for the scores; one that exists is refused")
    return parser.parse_args()


def score(model, tokenizer, tasks, manager, arguments):
    """The scores of one model: {(task, metric): (value, standard error)}."""
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=arguments.batch_size, device=arguments.device)
    results = lm_eval.simple_evaluate(lm, tasks=tasks, task_manager=manager, limit=arguments.limit, bootstrap_iters=1000,
                                      log_samples=False)["results"]
    scores = {}
    for task, metrics in results.items():
        for name, value in metrics.items():
            metric, _, kind = name.partition(",")
            if isinstance(value, (int, float)) and kind and not metric.endswith("_stderr"):
                error = metrics.get(f"{metric}_stderr,{kind}")
                scores[task, metric] = float(value), float(error) if isinstance(error, (int, float)) else math.nan
    return scores


def show(columns):
    """Prints a line for each score, a column for each model."""
    rows = list(columns["original"])
    wide = max(len(f"{task} {metric}") for task, metric in rows)
    print(" " * wide + "".join(f"  {name:>22}" for name in columns))
    for row in rows:
        cells = (columns[name].get(row, (math.nan, math.nan)) for name in columns)
        print(f"{' '.join(row):{wide}}" + "".join(f"  {value:>12.4f}" + (" " * 10 if math.isnan(error) else f" +- {error:.4f}")
                                                  for value, error in cells))


def write(columns, arguments):
    """Writes the columns that there are, all or nothing: a run that ends early leaves those that it had."""
    scores = {name: {" ".join(row): {"value": value, "standard_error": None if math.isnan(error) else error}
                     for row, (value, error) in column.items()} for name, column in columns.items()}
    beside = pathlib.Path(f"{arguments.output}.part")
    beside.write_text(json.dumps({"schema": "exfold-task-scores/1", "tables": arguments.tables, "limit": arguments.limit,
                                  "scores": scores}, indent=1) + "\n", encoding="utf-8")
    beside.replace(arguments.output)


def main():
    arguments = read_arguments()
    for path in (arguments.output, arguments.output and f"{arguments.output}.part"):
        if path and pathlib.Path(path).exists():
            sys.exit(f"score_tasks: {path} exists; name another --output, or remove it")
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=arguments.dtype).to(arguments.device).eval()
    for variant in arguments.variants.split():  # a wrong one ends the run here, not after the columns before it
        try:
            fold_experts.Folding(model, arguments.tables, variant, library=arguments.library).remove()
        except ValueError as error:
            sys.exit(f"score_tasks: {error}")
    manager = lm_eval.tasks.TaskManager(include_path=arguments.task_directory)
    tasks, columns = arguments.tasks.split(","), {}
    for variant in ("original", *arguments.variants.split()):
        folding = None
        if variant != "original":
            folding = fold_experts.Folding(model, arguments.tables, variant, library=arguments.library)
        columns[variant] = score(model, tokenizer, tasks, manager, arguments)
        if folding:
            folding.remove()
        if arguments.output:
            write(columns, arguments)
    show(columns)


if __name__ == "__main__":
    main()
