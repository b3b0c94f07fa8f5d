#!/usr/bin/env python3
"""Render conversations with a checkpoint's own chat template.

    python3 scripts/render_chat.py MODEL IN.jsonl OUT.jsonl [--messages NAME] [--set enable_thinking=false]
    python3 scripts/table_lines.py data/ | python3 scripts/render_chat.py MODEL - - | exfold-calibrate --model MODEL --text - -o out

IN.jsonl has a conversation per line, {"messages": [{"role": ..., "content": ...}, ...]}; OUT.jsonl
gets {"text": ...} per line, in the same order, as a manifest's source of format jsonl wants it; - is a pipe.
MODEL is a checkpoint directory with chat_template.jinja or with chat_template in its
tokenizer_config.json.  Turns of {"from": "human"|"gpt"|..., "value": ...}, as ShareGPT's files have them in "conversations",
are taken as {"role": "user"|"assistant"|..., "content": ...}; without --messages also "prompt" and "completion", and
"instruction", "input", "output" (Alpaca: the user's lines and the answer).  A line's "tools" are the template's.  Needs jinja2 3.1.6
or newer, nothing else; templates are foreign programs and run in jinja's sandbox.

The conversation is rendered whole, without a prompt for a further answer.  ExFold puts the tokens that the
model's tokenizer files name around every document (docs/data.md); where those start with the very token
that the template starts with, the template's is left out, so that it stands there once: do not set data.bos for it.
A template that asks for today's date is refused unless --date says one: equal inputs, equal bytes.
"""
import argparse
import datetime
import hashlib
import json
import os
import sys
import tempfile


class Failure(Exception):
    """A sentence for the user, and the exit status that goes with it (docs/programs.md, "Exit status")."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


def load_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except OSError as e:
        raise Failure(4, f"{path}: {e.strerror}") from e
    except ValueError as e:
        raise Failure(5, f"{path}: is no JSON: {e}") from e


def template_source(model):
    """The template's text: chat_template.jinja, else tokenizer_config.json's, of several the one named default."""
    path = os.path.join(model, "chat_template.jinja")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            return f.read()
    path = os.path.join(model, "tokenizer_config.json")
    template = load_json(path).get("chat_template") if os.path.exists(path) else None
    if isinstance(template, list):
        template = {t["name"]: t["template"] for t in template}.get("default")
    if not template:
        raise Failure(3, f"{model}: has no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json")
    return template


def special_tokens(model):
    """bos_token, eos_token, ... as templates know them."""
    tokens = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = os.path.join(model, name)
        for key, value in (load_json(path) if os.path.exists(path) else {}).items():
            value = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(value, str):
                tokens[key] = value
    return tokens


# As in src/tokenizer/tokenizer_template.c: classes whose add_bos_token decides, and what counts where it is missing.
OWN_TEMPLATE = {"LlamaTokenizer": True, "LlamaTokenizerFast": True, "GPTNeoXTokenizer": False, "GPTNeoXTokenizerFast": False}


def first_of_documents(model):
    """The token that ExFold puts in front of every document (data.bos: auto), or None."""
    path = os.path.join(model, "tokenizer_config.json")
    config = load_json(path) if os.path.exists(path) else {}
    if config.get("tokenizer_class") in OWN_TEMPLATE:
        adds = config.get("add_bos_token")
        adds = OWN_TEMPLATE[config["tokenizer_class"]] if adds is None else adds
        return special_tokens(model).get("bos_token") if adds else None
    path = os.path.join(model, "tokenizer.json")
    part = (load_json(path).get("post_processor") or {}) if os.path.exists(path) else {}
    parts = part["processors"] if part.get("type") == "Sequence" else [part]
    for p in parts:
        if p.get("type") == "TemplateProcessing" and p["single"] and "SpecialToken" in p["single"][0]:
            special = p["special_tokens"][p["single"][0]["SpecialToken"]["id"]]
            return special["tokens"][0]
    return None


def jinja_environment(date):
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if tuple(int(n) for n in jinja2.__version__.split(".")[:3]) < (3, 1, 6):
        raise Failure(2, f"jinja2 {jinja2.__version__} has a sandbox that templates can leave; 3.1.6 or newer is needed")

    class Generation(jinja2.ext.Extension):
        """{% generation %}...{% endgeneration %} marks the model's own words; the text is the same without."""
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def today(layout):
        if date is None:
            refuse("it asks for today's date; --date YYYY-MM-DD says one")
        return date.strftime(layout)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = today
    return env


def with_role(turn):
    """A turn of from and value as one of role and content; any other as it is."""
    if "role" in turn or not {"from", "value"} <= turn.keys():
        return turn
    names = {"human": "user", "gpt": "assistant"}
    return {"role": names.get(turn["from"], turn["from"]), "content": turn["value"]}


def conversation_of(row, member, where):
    """The messages of a row: those of the member, or of the members by which data sets are known (src/capture/members.c)."""
    if member:
        if member not in row:
            raise Failure(3, f'{where}: has no member "{member}"')
        return row[member]
    for name in ("messages", "conversations", "conversation"):
        if isinstance(row.get(name), list):
            return row[name]
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return prompt + completion
    if isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):
        prompt, completion = "\n".join(s for s in (row["instruction"], row.get("input")) if s), row["output"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    raise Failure(3, f'{where}: has no member "messages"; of its members {", ".join(row) or "none"}, name the conversation with --messages')


def tools_of(row, where):
    """The tools that the row offers, as the template wants them; some data sets have them as a text of JSON."""
    tools = row.get("tools")
    if isinstance(tools, str) and tools:
        try:
            tools = json.loads(tools)
        except ValueError as e:
            raise Failure(3, f'{where}: "tools" is no JSON: {e}') from e
    return {"tools": tools} if tools else {}


class ChatTemplate:
    """A model's template; render() gives the text of one conversation."""

    def __init__(self, model, variables=None, date=None):
        import jinja2

        if not os.path.isdir(model):
            raise Failure(4, f"{model}: is no directory")
        self.error = jinja2.exceptions.TemplateError
        self.variables = special_tokens(model) | (variables or {})
        try:
            self.template = jinja_environment(date).from_string(template_source(model))
        except self.error as e:
            raise Failure(3, f"{model}: the chat template cannot be read: {e}") from e
        self.front = first_of_documents(model)
        self.model = model

    def render(self, messages, where, **of_row):
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            raise Failure(3, f"{where}: the conversation is no list of messages")
        messages = [{k: v for k, v in with_role(m).items() if v is not None} for m in messages]  # absent columns of a dataset
        try:
            text = self.template.render(messages=messages, add_generation_prompt=False, **self.variables | of_row)
        except self.error as e:
            raise Failure(3, f"{where}: the chat template of {self.model}: {e}") from e
        if self.front and text.startswith(self.front):
            text = text[len(self.front):]
        return text


def jsonl_line(document):
    return json.dumps(document, ensure_ascii=False, separators=(", ", ": ")) + "\n"


def check_target(path, force=False):
    """Refuses what write_file() would refuse.  A link to nothing is there, too."""
    if os.path.lexists(path) and not force:
        raise Failure(4, f"{path}: exists; --force replaces it")
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
        raise Failure(4, f"{path}: is no regular file, which nothing replaces")


def write_file(path, blocks, force=False, expect=None):
    """Bytes under the final name, only when all are there; (blocks, sha256).  expect: the digest that they must have.  The
    temporary is new, and removed by the process that made it; without force nothing is replaced, not even what appeared
    meanwhile."""
    check_target(path, force)
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    digest, count = hashlib.sha256(), 0
    handle, temporary = tempfile.mkstemp(prefix=os.path.basename(path) + ".", suffix=".partial", dir=directory)
    try:
        with os.fdopen(handle, "wb") as out:
            for block in blocks:
                digest.update(block)
                out.write(block)
                count += 1
            out.flush()
            os.fsync(out.fileno())
        if expect and digest.hexdigest() != expect:
            raise Failure(3, f"{path}: would have sha256 {digest.hexdigest()}, the manifest says {expect}")
        os.chmod(temporary, 0o666 & ~umask())
        put_in_place(temporary, path, force)
    except BaseException:
        os.unlink(temporary)
        raise
    return count, digest.hexdigest()


def put_in_place(temporary, path, force):
    if not force:
        try:
            os.link(temporary, path)
            os.unlink(temporary)
            return
        except OSError:  # it appeared meanwhile, or the file system has no hard links
            pass
    check_target(path, force)
    os.replace(temporary, path)


def write_lines(path, documents, force=False, expect=None):
    """A line per document (write_file)."""
    return write_file(path, (jsonl_line(d).encode("utf-8") for d in documents), force, expect)


def write_pipe(documents):
    """A line per document, to standard output; 141 where nobody reads on, who has said why.  A failure after
    the first leaves a line that is no JSON, so that whoever reads does not take the rows before it for all of them."""
    count = 0
    try:
        try:
            for d in documents:
                sys.stdout.buffer.write(jsonl_line(d).encode("utf-8"))
                count += 1
        except BrokenPipeError:
            raise
        except BaseException:  # whatever ends it
            sys.stdout.buffer.write(b"the rows end here by an error\n" if count else b"")
            raise
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_lines(path):
    """(where, object) of every line that is not blank; path -: of standard input."""
    try:
        with open(sys.stdin.fileno() if path == "-" else path, encoding="utf-8-sig", closefd=path != "-") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        yield f"{path}:{number}", json.loads(line)
                    except ValueError as e:
                        raise Failure(5, f"{path}:{number}: is no JSON: {e}") from e
    except OSError as e:
        raise Failure(4, f"{path}: {e.strerror}") from e


def variable(text):
    """NAME=VALUE; a value that is JSON (true, 3, "x") is that, anything else is text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def add_template_options(parser):
    parser.add_argument("--set", metavar="NAME=VALUE", type=variable, action="append", default=[], help="a variable of the template")
    parser.add_argument("--date", type=datetime.date.fromisoformat, help="what the template is told when it asks for today's date")


# Names under which pip knows modules, where they differ from the module's.
PIP_NAMES = {"yaml": "pyyaml"}


def needed(module):
    """What to tell of a module that is not there: pip's name for it, and the package that Debian has, if any."""
    name = (module or "").partition(".")[0]
    pip, debian = PIP_NAMES.get(name, name), {"yaml": "python3-yaml", "jinja2": "python3-jinja2", "torch": "python3-torch"}.get(name)
    return f"the Python package {pip} is needed: pip install {pip}" + (f" (or apt-get install {debian})" if debian else "")


def first_line(error):
    """What an error of a library says, in one line."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def reaching(name, error):
    """The failure of a library that was asked for `name`: 4 where nothing could be read, from a disk or a network, else 3."""
    unread = isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("aiohttp", "httpcore", "httpx", "requests")
    return Failure(4 if unread else 3, f"{name}: {first_line(error)}")


def run(main):
    """main's exit status; its Failure as one line on standard error."""
    try:
        main()
    except Failure as e:
        sys.exit(fail(e))
    except ImportError as e:
        sys.exit(fail(Failure(2, needed(e.name))))


def fail(e):
    print(f"{os.path.basename(sys.argv[0])}: error: {e}", file=sys.stderr)
    return e.status


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("conversations", help="IN.jsonl, or - for standard input")
    p.add_argument("out", help="OUT.jsonl, or - for standard output")
    p.add_argument("--messages", metavar="NAME", help="the member that holds the conversation")
    p.add_argument("--force", action="store_true", help="replace OUT.jsonl if it exists")
    add_template_options(p)
    args = p.parse_args()
    template = ChatTemplate(args.model, dict(args.set), args.date)

    def documents():
        for where, row in read_lines(args.conversations):
            if not isinstance(row, dict):
                raise Failure(3, f"{where}: is no JSON object")
            yield {"text": template.render(conversation_of(row, args.messages, where), where, **tools_of(row, where))}

    if args.out == "-":
        write_pipe(documents())
        return
    count, digest = write_lines(args.out, documents(), args.force)
    print(f"wrote {args.out}  {count} documents  sha256 {digest}")


if __name__ == "__main__":
    run(main)
