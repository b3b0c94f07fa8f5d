"""The JSON Schemas beside the programs: what one takes the other takes, what one refuses the other refuses.

make check-scripts runs it from the project's root; it needs PyYAML and jsonschema and fails without them.
Values are made from the schemas themselves: bounds and what is beyond them, every word and a word that is none.
A program's refusal counts where it names the file's line; what only a model or another key decides is not compared."""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import jsonschema
import yaml

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
TINY = os.path.abspath("tests/bad/base")


class Loader(yaml.SafeLoader):
    """Reads YAML 1.2's numbers, as editors do: 1e-3 is one."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+$"), list("-+0123456789."))


def load(path):
    with open(path, encoding="utf-8") as f:
        return yaml.load(f, Loader)


def schema_of(kind):
    said = subprocess.run([BUILD + "/bin/exfold-inspect", "schema", kind], capture_output=True, check=True)
    schema = json.loads(said.stdout)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def accepts(schema, document):
    return not list(schema.iter_errors(document))


def nested(key, value):
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def merged(a, b):
    return {k: merged(a[k], b[k]) if isinstance(a.get(k), dict) and isinstance(b.get(k), dict) else b.get(k, a.get(k)) for k in {**a, **b}}


class Program(unittest.TestCase):
    """A directory with a tiny model; run() says whether a program refuses a line of the file."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="exfold-schema.")
        self.addCleanup(shutil.rmtree, self.dir)
        shutil.copytree(TINY, self.dir, dirs_exist_ok=True)

    def refuses(self, name, document, *command):
        with open(os.path.join(self.dir, name), "w", encoding="utf-8") as f:
            json.dump(document, f)  # a JSON text is a YAML text
        said = subprocess.run([BUILD + "/bin/" + command[0], *command[1:]], cwd=self.dir, capture_output=True, text=True)
        refused = said.returncode == 2 and f"error: {name}:" in said.stderr
        return refused, said.stderr

    def same(self, schema, name, document, what, *command):
        refused, said = self.refuses(name, document, *command)
        with self.subTest(what):
            self.assertEqual(accepts(schema, document), not refused, said)


class Recipes(Program):
    def test_the_trees_own(self):
        for kind, pattern in (("recipe", "recipes/*.yaml"), ("manifest", "data-manifests/*.yaml"), ("recipe", "tests/reference/*.yaml")):
            schema = schema_of(kind)
            paths = sorted(glob.glob(pattern))
            self.assertTrue(paths)
            for path in paths:
                self.assertEqual([e.message for e in schema.iter_errors(load(path))], [], path)

    def test_what_the_programs_write(self):
        subprocess.run([BUILD + "/bin/exfold-calibrate", "--init", "mine.yaml", "--model", "model", "--text", "corpus.jsonl"],
                       cwd=self.dir, check=True, capture_output=True)
        # every key that is commented out may stand as it is there
        with open(self.dir + "/mine.yaml", encoding="utf-8") as f:
            text = f.read()
        whole = "\n".join(line.replace("#", "", 1) if line.lstrip().startswith("#") and not line.lstrip().startswith("# ") and
                          not line.split(":", 1)[1].strip().isupper() else line for line in text.split("\n"))
        with open(self.dir + "/all.yaml", "w", encoding="utf-8") as f:
            f.write(whole)
        done = subprocess.run([BUILD + "/bin/exfold-calibrate", "mine.yaml", "-o", "out"], cwd=self.dir, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for kind, name in (("recipe", "mine.yaml"), ("recipe", "all.yaml"), ("manifest", "mine-manifest.yaml"), ("recipe", "out/exfold_recipe.yaml")):
            document = load(f"{self.dir}/{name}")
            for section in [k for k, v in document.items() if v is None]:
                del document[section]  # of which every key is a path
            self.assertEqual([e.message for e in schema_of(kind).iter_errors(document)], [], name)

    def values(self, rule):
        """Values to try of a key, from its part of the schema."""
        for part in rule.get("anyOf", []):
            yield from self.values(part)
        if "enum" in rule:
            yield from rule["enum"]
            yield "nonsense"
        if rule.get("type") in ("integer", "number"):
            low, high = rule.get("minimum"), rule.get("maximum")
            for bound, beyond in ((low, -1), (high, 1)):
                if bound is not None:
                    yield bound
                    yield bound + beyond
            yield "nonsense"
        if rule.get("type") == "integer":
            yield 1.5
        if rule.get("type") == "array":
            items = list(self.values(rule["items"]))
            yield []
            yield from ([v] for v in items)
            yield [items[0], items[0]] if items else []
            yield from (v for v in items if not isinstance(v, dict))
        yield {"unknown": 1}

    def test_each_key(self):
        schema = schema_of("recipe")
        base = load(TINY + "/recipe.yaml")
        base.pop("pools", None)
        tried = 0
        base["validate"] = {"manifest": "manifest.yaml"}
        # the grammar of variants and limits is the programs' own
        # and a bound of data.min_tokens is above data.max_tokens
        skipped = {("data.min_tokens", "1048576"), ("validate.variants", "nonsense"), ("validate.fail_above", "nonsense")}
        for key, rule in schema.schema["definitions"].items():
            program = ["exfold-validate", "recipe.yaml", "-n"] if key.startswith("validate.") else ["exfold-calibrate", "recipe.yaml", "-n"]
            seen = []
            for value in self.values(rule):
                if value in seen or (key, str(value)) in skipped:
                    continue
                seen.append(value)
                self.same(schema, "recipe.yaml", merged(base, nested(key, value)), f"{key}: {value!r}", *program)
                tried += 1
        self.assertGreater(tried, 200)

    def test_spellings(self):
        schema = schema_of("recipe")
        base = load(TINY + "/recipe.yaml")
        for more in ({"runtime.checkpoint.every_layers": 2}, {"runtime": {"checkpoint.every_layers": 2}}, {"calibrate.clip": "none"},
                     {"calibrate": {"clip": ["none"]}}, {"calibrate": {"clip": [4]}}, {"calibrate": {"clip": "-1,2"}},
                     {"pools": "3,2"}, {"pools": ["3:reap", {"size": 2, "by": "energy"}]}, {"pools": [{"size": 2, "by": "luck"}]},
                     {"pools": [{"by": "norm"}]}, {"pools": "3:luck"}, {"pools": [0]}, {"budgets": "1"}, {"budgets": [0]},
                     {"output": {"targets": "safetensors"}}, {"output": {"targets": "safetensors,nonsense"}},
                     {"runtime": {"max_gpu_memory": "8GiB"}}, {"runtime": {"max_gpu_memory": "8GB "}}, {"runtime": {"max_gpu_memory": "x"}},
                     {"calibrate": {"ridge": "1e-3"}}, {"calibrate": None}, {"calibrate": 3}, {"data.sequences": 3, "nonsense": 1}):
            document = {k: v for k, v in base.items() if k != "pools" or "pools" not in more}
            for key in list(document):
                if any(k.split(".")[0] == key for k in more) and isinstance(document[key], dict):
                    document[key] = {k: v for k, v in document[key].items() if f"{key}.{k}" not in more}
            self.same(schema, "recipe.yaml", merged(document, more), repr(more), "exfold-calibrate", "recipe.yaml", "-n")


class Manifests(Program):
    def test_sources(self):
        schema = schema_of("manifest")
        good = {"path": "corpus.jsonl", "format": "jsonl"}
        origin = {"dataset": "a/b", "split": "train"}
        one = [{}, {"sequences": 1}, {"sequences": 0}, {"sequences": 1000000001}, {"sequences": 1.5}, {"sha256": "unpinned"},
               {"sha256": "a" * 63}, {"sha256": "g" * 64}, {"field": "text"}, {"field": ""}, {"tensor": "x"}, {"where": {"domain": "c"}},
               {"where": {}}, {"where": "c"}, {"where": {"domain": ["c"]}}, {"domain": "c"}, {"domain": []}, {"format": "json"},
               {"format": "text", "field": "text"}, {"format": "text", "origin": origin}, {"nonsense": 1}, {"origin": origin}, {"origin": "x"},
               {"origin": {"dataset": "a/b"}}, {"origin": {**origin, "skip": 0, "take": 1}}, {"origin": {**origin, "skip": -1}},
               {"origin": {**origin, "take": 0}}, {"origin": {**origin, "where": {"source": ["a", "b"]}}}, {"origin": {**origin, "where": {"source": []}}},
               {"origin": {**origin, "messages": "m"}}, {"origin": {**origin, "messages": "m", "text": "t"}}, {"origin": {**origin, "nonsense": 1}}]
        documents = [{"schema": "exfold-manifest/1", "sources": [{**good, **more}]} for more in one]
        documents += [{"schema": "exfold-manifest/1", "sources": [{"path": "corpus.jsonl"}]}, {"schema": "exfold-manifest/1", "sources": []},
                      {"schema": "exfold-manifest/1", "sources": {}}, {"schema": "exfold-manifest/1"}, {"schema": "exfold-manifest/2", "sources": [good]},
                      {"sources": [good]}, {"schema": "exfold-manifest/1", "sources": [good], "nonsense": 1}]
        for document in documents:
            self.same(schema, "manifest.yaml", document, json.dumps(document), "exfold-calibrate", "recipe.yaml", "-n")


if __name__ == "__main__":
    unittest.main()
