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


# What programs that know fixed forms refuse: tools, their calls and answers, contents in parts.
TOOLS = """{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- '</tools>\\n' }}
{%- endif %}
{%- for m in messages %}
    {{- '<' ~ m.role ~ '>' }}
    {%- if m.content is string %}
        {{- m.content }}
    {%- elif m.content %}
        {%- for part in m.content %}{{- part.text if part.type == 'text' else '[' ~ part.type ~ ']' }}{%- endfor %}
    {%- endif %}
    {%- for call in m.tool_calls or [] %}
        {{- '<call>' ~ (call.function | tojson) ~ '</call>' }}
    {%- endfor %}
{%- endfor %}
"""
TOOL_ROW = {
    "tools": [{"type": "function", "function": {"name": "weather", "description": "é & <", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "In "}, {"type": "image"}, {"type": "text", "text": "Köln?"}]},
                 {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}]},
                 {"role": "tool", "content": "12 °C"}, {"role": "assistant", "content": "12."}]}


def check_tools(scratch):
    model, talk, made = (os.path.join(scratch, name) for name in ("with-tools", "talk.jsonl", "made.jsonl"))
    make_model(model, TOOLS)
    with open(talk, "w", encoding="utf-8") as f:
        f.write(json.dumps(TOOL_ROW) + "\n")
    script("render_chat.py", model, talk, made)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    want = tokenizer.apply_chat_template(TOOL_ROW["messages"], tools=TOOL_ROW["tools"], tokenize=False)
    if [d["text"] for d in lines(made)] != [want]:
        sys.exit(f"tools: {lines(made)!r}\nexpected {want!r}")


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


def check_offline(scratch):
    """The real libraries without a network: one sentence and status 4."""
    path = os.path.join(scratch, "offline.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write("schema: exfold-manifest/1\nsources:\n  - path: made.jsonl\n    format: jsonl\n"
                "    origin: {dataset: some/texts, split: train, text: words}\n")
    for revision in ("", ", revision: abc123"):
        with open(path, encoding="utf-8") as f:
            text = f.read()
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(", split", revision + ", split"))
        done = subprocess.run([sys.executable, "scripts/materialize_manifest.py", path], capture_output=True, text=True)
        errors = [line for line in done.stderr.splitlines() if line.startswith("materialize_manifest.py: error: ")]
        if done.returncode != 4 or len(errors) != 1 or "Traceback" in done.stderr:
            sys.exit(f"offline: status {done.returncode}: {done.stderr}")


def check_demo_config():
    """transformers reads the demo model's sizes as they are, in either spelling."""
    config = transformers.AutoConfig.from_pretrained("examples/demo-model")
    with open("examples/demo-model/config.json", encoding="utf-8") as f:
        said = json.load(f)
    theta = config.rope_parameters["rope_theta"] if getattr(config, "rope_parameters", None) else config.rope_theta
    if (config.num_experts, theta) != (16, 1e6) or (said["num_experts"], said["rope_theta"]) != (said["num_local_experts"], said["rope_parameters"]["rope_theta"]):
        sys.exit(f"examples/demo-model: {config.num_experts} experts, theta {theta}")


def main():
    compared = 0
    check_demo_config()
    with tempfile.TemporaryDirectory() as scratch:
        check_offline(scratch)
        check_tools(scratch)
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
