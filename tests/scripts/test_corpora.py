"""materialize_manifest.py and render_chat.py, offline: a stand-in for the datasets library, small templates.

make check-scripts runs it; it needs PyYAML and jinja2 and fails without them.  What the real
libraries do with such inputs is in beside_libraries.py.
"""
import contextlib
import datetime
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "scripts"))
import materialize_manifest
import render_chat
from render_chat import Failure

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '\\n' if not loop.last else '' }}{% endfor %}{{ eos_token }}"


class Scratch(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = directory.name

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def read(self, *names):
        with open(self.path(*names), encoding="utf-8") as f:
            return f.read()

    def model(self, template=CHAT, **config):
        self.write("model/tokenizer_config.json", json.dumps({"chat_template": template, "eos_token": {"content": "</s>"}} | config))
        return self.path("model")

    def fails(self, status, part, call, *args, **kwargs):
        with self.assertRaises(Failure) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.status, status)
        self.assertIn(part, str(caught.exception))

    def main(self, module, *argv):
        """What a script prints, and its exit status."""
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", ["script.py", *argv]), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                render_chat.run(module.main)
                status = 0
            except SystemExit as e:
                status = e.code
        return status, out.getvalue(), err.getvalue()


class Missing(Scratch):
    """A package that is not there is named as pip names it, and --help needs none."""

    def say(self, module):
        def main():
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)

        err = io.StringIO()
        with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as caught:
            render_chat.run(main)
        self.assertEqual(caught.exception.code, 2)
        return err.getvalue()

    def test_packages_have_the_name_that_pip_knows(self):
        self.assertIn("pip install pyyaml (or apt-get install python3-yaml)", self.say("yaml"))
        self.assertIn("pip install jinja2 (or apt-get", self.say("jinja2.ext"))
        self.assertIn("pip install datasets\n", self.say("datasets"))

    def test_help_needs_no_package(self):
        for script in ("materialize_manifest", "render_chat"):
            path = os.path.join(os.path.dirname(render_chat.__file__), script + ".py")
            done = subprocess.run([sys.executable, "-S", "-E", path, "--help"], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), script)
            self.assertIn("usage: ", done.stdout)


class Templates(Scratch):
    messages = [{"role": "user", "content": "a <b> 'c' é", "tool_calls": None}, {"role": "assistant", "content": "d"}]

    def render(self, template, date=None, variables=None, **config):
        return render_chat.ChatTemplate(self.model(template, **config), variables, date).render(self.messages, "line 1")

    def test_renders(self):
        self.assertEqual(self.render(CHAT), "<user>a <b> 'c' é\n<assistant>d</s>")

    def test_turns_of_from_and_value(self):
        turns = [{"from": "system", "value": "a"}, {"from": "human", "value": "b"}, {"from": "gpt", "value": "c"}]
        text = render_chat.ChatTemplate(self.model()).render(turns, "line 1")
        self.assertEqual(text, "<system>a\n<user>b\n<assistant>c</s>")

    def test_the_file_beats_the_configuration(self):
        model = self.model("wrong")
        self.write("model/chat_template.jinja", "right")
        self.assertEqual(render_chat.ChatTemplate(model).render(self.messages, ""), "right")

    def test_of_several_the_default(self):
        several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
        self.assertEqual(self.render(several), "y")
        self.fails(3, "has no chat template", self.render, [{"name": "rag", "template": "x"}])

    def test_blanks_and_helpers(self):
        self.assertEqual(self.render("  {% if true %}\nx\n  {% endif %}\n"), "x\n")
        self.assertEqual(self.render("{{ messages[0].content | tojson }}"), '"a <b> \'c\' é"')
        self.assertEqual(self.render("{% for m in messages %}{% break %}{% endfor %}z"), "z")
        self.assertEqual(self.render("{% generation %}{{ messages[1].content }}{% endgeneration %}"), "d")
        self.assertEqual(self.render("{{ add_generation_prompt }}{{ messages[0].tool_calls is defined }}"), "FalseFalse")

    def test_variables(self):
        self.assertEqual(self.render("{{ thinking }}", variables={"thinking": False}), "False")
        self.assertEqual(render_chat.variable("thinking=false"), ("thinking", False))
        self.assertEqual(render_chat.variable("name=x y"), ("name", "x y"))

    def test_today_is_said_or_refused(self):
        template = "{{ strftime_now('%d %b %Y') }}"
        self.fails(3, "--date", self.render, template)
        self.assertEqual(self.render(template, date=datetime.date(2024, 7, 26)), "26 Jul 2024")

    def test_refusals(self):
        self.fails(3, "line 1: the chat template of", self.render, "{{ raise_exception('roles must alternate') }}")
        self.fails(3, "cannot be read", self.render, "{% if %}")
        self.fails(3, "has no chat template", self.render, None)
        self.fails(4, "is no directory", render_chat.ChatTemplate, self.path("nowhere"))
        template = render_chat.ChatTemplate(self.model())
        for wrong in (None, [], "text", [1]):
            self.fails(3, "line 7: the conversation is no list of messages", template.render, wrong, "line 7")

    def test_the_sandbox_holds(self):
        self.fails(3, "unsafe", self.render, "{{ messages.__class__.__mro__ }}")
        self.fails(3, "unsafe", self.render, "{% set _ = messages.append(1) %}")

    def test_a_first_token_stands_once(self):
        processor = {"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
                     "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
        template = "{{ bos_token }}" + CHAT
        self.assertTrue(self.render(template, bos_token="<s>").startswith("<s><user>"))
        for part in (processor, {"type": "Sequence", "processors": [{"type": "ByteLevel"}, processor]}):
            self.write("model/tokenizer.json", json.dumps({"post_processor": part}))
            self.assertTrue(self.render(template, bos_token="<s>").startswith("<user>"))
        self.assertTrue(self.render(template, bos_token="<s>", tokenizer_class="LlamaTokenizerFast",
                                    add_bos_token=False).startswith("<s><user>"))
        self.write("model/tokenizer.json", json.dumps({"post_processor": None}))
        self.assertTrue(self.render(template, bos_token="<s>").startswith("<s><user>"))
        self.assertTrue(self.render(template, bos_token="<s>", add_bos_token=True).startswith("<s><user>"))
        for said in ({}, {"add_bos_token": True}):
            self.assertTrue(self.render(template, bos_token="<s>", tokenizer_class="LlamaTokenizerFast", **said).startswith("<user>"))

    def test_the_script(self):
        lines = self.write("in.jsonl", json.dumps({"messages": self.messages}) + "\n\n" + json.dumps({"messages": self.messages[1:]}) + "\n")
        argv = self.model(), lines, self.path("out.jsonl")
        status, out, err = self.main(render_chat, *argv)
        self.assertEqual((status, err), (0, ""))
        made = [json.loads(line)["text"] for line in self.read("out.jsonl").splitlines()]
        self.assertEqual(made, ["<user>a <b> 'c' é\n<assistant>d</s>", "<assistant>d</s>"])
        self.assertIn("2 documents  sha256 " + hashlib.sha256(self.read("out.jsonl").encode()).hexdigest(), out)
        status, out, err = self.main(render_chat, *argv)
        self.assertEqual((status, out), (4, ""))
        self.assertIn("out.jsonl: exists", err)
        self.assertEqual(self.main(render_chat, *argv, "--force")[0], 0)
        self.write("in.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n{"text": 1}\n')
        status, out, err = self.main(render_chat, *argv, "--force")
        self.assertEqual(status, 3)
        self.assertIn('in.jsonl:2: has no member "messages"', err)
        self.assertEqual(len(self.read("out.jsonl").splitlines()), 2)  # as it was
        self.assertEqual(sorted(os.listdir(self.dir)), ["in.jsonl", "model", "out.jsonl"])  # nothing half-written
        self.write("in.jsonl", "{\n")
        self.assertEqual(self.main(render_chat, *argv, "--force")[0], 5)
        self.assertEqual(self.main(render_chat, self.model(), self.path("none"), self.path("new"))[0], 4)


class Selection(unittest.TestCase):
    rows = [{"n": i, "kind": "abc"[i % 3], "text": str(i)} for i in range(9)]

    def chosen(self, **origin):
        return [r["n"] for r in materialize_manifest.select(iter(self.rows), origin)]

    def test_rows(self):
        self.assertEqual(self.chosen(), list(range(9)))
        self.assertEqual(self.chosen(where={"kind": "b"}), [1, 4, 7])
        self.assertEqual(self.chosen(where={"kind": ["b", "c"], "n": ["1", "2", "5", "3"]}), [1, 2, 5])
        self.assertEqual(self.chosen(skip="2", take="3"), [2, 3, 4])
        self.assertEqual(self.chosen(where={"kind": "a"}, skip="1", take="2"), [3, 6])

    def test_no_row_too_many_is_asked_for(self):
        rows = iter(self.rows)
        list(materialize_manifest.select(rows, {"take": "4"}))
        self.assertEqual(next(rows)["n"], 4)

    def test_what_is_not_there(self):
        with self.assertRaisesRegex(Failure, "ends 2 documents too early"):
            self.chosen(where={"kind": "a"}, take="5")
        with self.assertRaisesRegex(Failure, 'no column "colour"; it has kind, n, text'):
            self.chosen(where={"colour": "a"})


MANIFEST = """# a comment
schema: exfold-manifest/1
sources:
  - path: made/chat.jsonl
    format: jsonl
    domain: chat
    sequences: 2
    sha256: unpinned
    origin: {dataset: some/talks, revision: unpinned, subset: small, split: chat, where: {kind: [x, y]}, take: 2}
  - path: made/prose.jsonl
    format: jsonl
    field: body
    domain: prose
    sha256: unpinned
    origin: {dataset: some/texts, revision: abc123, split: train, skip: 1, text: words}
"""
TALKS = [{"kind": k, "messages": [{"role": "user", "content": k + str(i)}]} for i, k in enumerate("zxzyx")]
TEXTS = [{"words": w} for w in ("one", "two", "three")]


class Materializing(Scratch):
    def setUp(self):
        super().setUp()
        self.asked = []
        fake = types.ModuleType("datasets")
        fake.load_dataset = self.load_dataset
        hub = types.ModuleType("huggingface_hub")
        hub.HfApi = lambda: types.SimpleNamespace(dataset_info=lambda name: types.SimpleNamespace(sha="newest-of-" + name))
        patch = mock.patch.dict(sys.modules, {"datasets": fake, "huggingface_hub": hub})
        patch.start()
        self.addCleanup(patch.stop)
        self.manifest = self.write("m.yaml", MANIFEST)

    def load_dataset(self, name, subset=None, **kwargs):
        self.asked.append((name, subset, kwargs))
        if name == "some/none":
            raise RuntimeError("no such dataset")
        return iter(TALKS if name == "some/talks" else TEXTS)

    def make(self, *argv):
        return self.main(materialize_manifest, self.manifest, *argv)

    def test_files_where_the_manifest_says(self):
        status, out, err = self.make("--model", self.model())
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(self.read("made", "chat.jsonl"), '{"text": "<user>x1</s>"}\n{"text": "<user>y3</s>"}\n')
        self.assertEqual(self.read("made", "prose.jsonl"), '{"body": "two"}\n{"body": "three"}\n')
        self.assertIn("2 documents of some/talks at newest-of-some/talks  sha256 ", out)
        self.assertEqual(self.asked, [
            ("some/talks", "small", {"split": "chat", "revision": "newest-of-some/talks", "streaming": True}),
            ("some/texts", None, {"split": "train", "revision": "abc123", "streaming": True})])
        self.assertEqual(self.read("m.yaml"), MANIFEST)
        self.assertEqual(sorted(os.listdir(self.path("made"))), ["chat.jsonl", "prose.jsonl"])

    def test_a_directory_with_a_pinned_copy(self):
        import yaml

        self.assertEqual(self.make("--model", self.model(), "--output", self.path("for-model"))[0], 0)
        made = yaml.safe_load(self.read("for-model", "manifest.yaml"))
        self.assertEqual(made["schema"], "exfold-manifest/1")
        for source in made["sources"]:
            digest = hashlib.sha256(self.read("for-model", source["path"]).encode()).hexdigest()
            self.assertEqual(source["sha256"], digest)
        self.assertEqual(made["sources"][0]["origin"]["revision"], "newest-of-some/talks")
        self.assertEqual((made["sources"][0]["sequences"], made["sources"][0]["origin"]["take"]), (2, 2))
        # made again from the copy: the same bytes, and a digest that is held to
        self.manifest = self.path("for-model", "manifest.yaml")
        self.assertEqual(self.make("--model", self.model(), "--force")[0], 0)
        status, out, err = self.make("--model", self.model("other"), "--force")
        self.assertEqual(status, 3)
        self.assertIn("the manifest says", err)

    def test_what_others_made_stays(self):
        weights = self.write("weights", "w")
        directory = self.path("for-model")
        os.makedirs(directory)
        os.symlink(weights, os.path.join(directory, "manifest.yaml.partial"))
        self.write("for-model/chat.jsonl.x.partial", "mine")
        self.assertEqual(self.make("--no-render", "--output", directory)[0], 0)
        self.assertEqual((self.read("weights"), self.read("for-model", "chat.jsonl.x.partial")), ("w", "mine"))
        self.assertTrue(os.path.islink(os.path.join(directory, "manifest.yaml.partial")))
        # a manifest of somebody else, links, to nothing too, and folders in the outputs' places
        for name, kind in (("manifest.yaml", "file"), ("chat.jsonl", "link"), ("prose.jsonl", "broken"), ("manifest.yaml", "folder")):
            other = self.path("other" + kind)
            os.makedirs(other)
            {"file": lambda p: self.write(p, "mine"), "link": lambda p: os.symlink(weights, p), "folder": os.mkdir,
             "broken": lambda p: os.symlink("nowhere", p)}[kind](os.path.join(other, name))
            for force in ([], ["--force"]) if kind != "file" else ([],):
                status, out, err = self.make("--no-render", "--output", other, *force)
                self.assertEqual((status, out), (4, ""), kind)
                self.assertIn(name, err)
            self.assertEqual(os.listdir(other), [name])
        self.assertEqual((self.read("weights"), self.read("otherfile", "manifest.yaml")), ("w", "mine"))

    def test_what_appears_meanwhile_stays(self):
        path = self.path("out.jsonl")

        def documents():
            self.write("out.jsonl", "mine")
            yield {"text": "a"}

        self.fails(4, "out.jsonl: exists", render_chat.write_lines, path, documents())
        self.assertEqual((self.read("out.jsonl"), sorted(os.listdir(self.dir))), ("mine", ["m.yaml", "out.jsonl"]))

    def test_conversations_left_as_they_are(self):
        self.assertEqual(self.make("--no-render")[0], 0)
        first = json.loads(self.read("made", "chat.jsonl").splitlines()[0])
        self.assertEqual(first, {"messages": TALKS[1]["messages"]})

    def test_a_dataset_beside_the_manifest(self):
        self.write("m.yaml", MANIFEST.replace("some/talks", "./talks").replace("some/texts", "./texts"))
        self.assertEqual(self.make("--no-render")[0], 3)  # the stand-in has texts only under that name
        self.assertEqual(self.asked[0], (self.path("./talks"), "small", {"split": "chat", "revision": None, "streaming": True}))

    def test_refusals_before_any_download(self):
        for status, part, text, argv in (
                (2, "--model names the checkpoint", MANIFEST, ()),
                (2, "no source names its origin", MANIFEST.replace("origin:", "# origin:"), ("--no-render",)),
                (2, "two sources would be made at", MANIFEST.replace("prose.jsonl", "chat.jsonl"), ("--no-render",)),
                (2, "is no manifest", "schema: exfold-recipe/1\n", ()),
                (2, "m.yaml: ", "a: [", ()),
                (4, "is no directory", MANIFEST, ("--model", self.path("nowhere"))),
                (2, "a source has no origin", MANIFEST + "  - {path: x, format: text}\n", ("--no-render", "--output", self.path("o")))):
            self.write("m.yaml", text)
            got, out, err = self.make(*argv)
            self.assertEqual((got, out), (status, ""), err)
            self.assertIn(part, err)
        self.assertEqual(self.make.__self__.main(materialize_manifest, self.path("none.yaml"))[0], 4)
        self.write("m.yaml", MANIFEST)
        self.write("made/prose.jsonl", "mine")
        status, out, err = self.make("--no-render")
        self.assertEqual(status, 4)
        self.assertIn("prose.jsonl: exists", err)
        self.assertEqual(self.asked, [])
        self.assertEqual(os.listdir(self.path("made")), ["prose.jsonl"])

    def test_a_failure_names_its_source_and_leaves_nothing(self):
        for old, new, part in (
                ("some/texts", "some/none", "made/prose.jsonl (some/none, train): some/none: no such dataset"),
                ("text: words", "text: sentences", 'has no column "sentences"; it has words'),
                ("skip: 1", "take: 9", "ends 6 documents too early")):
            self.write("m.yaml", MANIFEST.replace(old, new))
            status, out, err = self.make("--no-render", "--force")
            self.assertEqual(status, 3)
            self.assertIn(part, err)
            self.assertEqual(os.listdir(self.path("made")), ["chat.jsonl"])

    def test_without_a_network_it_is_one_sentence(self):
        class ConnectError(Exception):  # as httpx has it, which is no OSError
            pass

        def offline(*_args, **_kwargs):
            raise ConnectError("name or service not known\nand more lines")

        def broken(*_args, **_kwargs):
            yield {"kind": "x", "messages": TALKS[1]["messages"]}
            raise ConnectionResetError("connection reset")

        ConnectError.__module__ = "httpx"
        hub = types.ModuleType("huggingface_hub")
        hub.HfApi = lambda: types.SimpleNamespace(dataset_info=offline)
        whole = f"{self.manifest}: made/chat.jsonl (some/talks, chat): some/talks"
        for patch, part in ((mock.patch.dict(sys.modules, {"huggingface_hub": hub}), ": its newest revision is not known: name or service not known\n"),
                            (mock.patch.object(sys.modules["datasets"], "load_dataset", offline), ": name or service not known\n"),
                            (mock.patch.object(sys.modules["datasets"], "load_dataset", broken), ": connection reset\n")):
            with patch:
                status, out, err = self.make("--no-render")
            self.assertEqual((status, out, err), (4, "", f"script.py: error: {whole}{part}"))
            self.assertFalse(os.path.exists(self.path("made")) and os.listdir(self.path("made")))

    def test_a_missing_package_is_named(self):
        with mock.patch.dict(sys.modules, {"datasets": None}):
            status, out, err = self.make("--no-render")
        self.assertEqual(status, 2)
        self.assertIn("the Python package datasets is needed", err)

    def test_every_origin_of_the_project_can_be_read(self):
        directory = os.path.join(os.path.dirname(__file__), "..", "..", "data-manifests")
        with_origin = 0
        for name in sorted(os.listdir(directory)):
            for source in materialize_manifest.load_manifest(os.path.join(directory, name))["sources"]:
                if "origin" in source:
                    with_origin += 1
                    self.assertIn("/", source["origin"]["dataset"])
                    self.assertGreaterEqual(int(source["origin"]["take"]), int(source["sequences"]))
        self.assertGreaterEqual(with_origin, 21)


if __name__ == "__main__":
    unittest.main()
