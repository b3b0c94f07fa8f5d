"""The corpus scripts beside the libraries they stand for (make check-scripts, from the project's root).

A data set on disk is read by the real datasets library, and every conversation rendered by
transformers' apply_chat_template with the same template; each must agree to the byte.
Nothing is downloaded.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import datasets
import transformers

TEMPLATES = {
    "chatml": """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
    {%- set content = message.content | trim %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "thinking": """{{ bos_token }}{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{% for m in messages %}
  {% if m.role == 'assistant' %}
{% generation %}
    {% if '</think>' in m.content and loop.index0 < ns.last %}
<a>{{ m.content.split('</think>')[-1].lstrip('\\n') }}{{ eos_token }}
    {% else %}
<a>{{ m.content }}{{ eos_token }}
    {% endif %}
{% endgeneration %}
  {% elif m.role == 'tool' %}{% continue %}
  {% else %}
<{{ m.role }}>{{ m.content }}{% if m.tool_calls is defined and m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}
  {% endif %}
{% endfor %}""",
}
TALKS = [
    [{"role": "user", "content": " a <b> & 'c'\n"}, {"role": "assistant", "content": "<think>x</think>\n\nd é \u2028"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": "{{ 7 * 7 }}"}, {"role": "assistant", "content": "<think>1</think>one"},
     {"role": "tool", "content": "t"}, {"role": "user", "content": "again"}, {"role": "assistant", "content": "<think>2</think>two"}],
    [{"role": "user", "content": ""}],
]


def script(name, *argv):
    done = subprocess.run([sys.executable, f"scripts/{name}", *argv], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name} {' '.join(argv)}: status {done.returncode}: {done.stderr}")


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def make_model(directory, template):
    os.makedirs(directory)
    shutil.copy("examples/demo-model/tokenizer.json", directory)
    with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "chat_template": template}, f)


def make_dataset(directory):
    os.makedirs(os.path.join(directory, "data"))
    rows = [{"kind": "talk", "messages": m} for m in TALKS] + [{"kind": "other", "messages": TALKS[0]}]
    datasets.Dataset.from_list(rows).to_parquet(os.path.join(directory, "data", "chat-00000-of-00001.parquet"))


def main():
    compared = 0
    with tempfile.TemporaryDirectory() as scratch:
        make_dataset(os.path.join(scratch, "talks"))
        with open(os.path.join(scratch, "m.yaml"), "w", encoding="utf-8") as f:
            f.write("schema: exfold-manifest/1\nsources:\n  - path: made.jsonl\n    format: jsonl\n"
                    "    origin: {dataset: ./talks, split: chat, where: {kind: talk}, take: 3}\n")
        for name, template in TEMPLATES.items():
            model, out = os.path.join(scratch, name), os.path.join(scratch, name + "-corpus")
            make_model(model, template)
            script("materialize_manifest.py", os.path.join(scratch, "m.yaml"), "--model", model, "--output", out)
            made = [d["text"] for d in lines(os.path.join(out, "made.jsonl"))]
            tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            want = [tokenizer.apply_chat_template(talk, tokenize=False) for talk in TALKS]
            if made != want:
                sys.exit(f"{name}: {made!r}\nexpected {want!r}")
            compared += len(want)
    print(f"{compared} conversations as datasets {datasets.__version__} and transformers {transformers.__version__} have them")


if __name__ == "__main__":
    main()
