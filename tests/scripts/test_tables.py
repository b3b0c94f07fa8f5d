"""table_lines.py on tables that pyarrow writes, and render_chat.py after it in a pipe (make check-scripts; needs pyarrow and jinja2)."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import pyarrow
import pyarrow.parquet

SCRIPTS = os.path.join(os.path.dirname(__file__), "..", "..", "scripts")


def run(name, *argv, stdin=b""):
    return subprocess.run([sys.executable, os.path.join(SCRIPTS, name), *argv], input=stdin, capture_output=True, check=False)


class Tables(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = directory.name
        self.rows = [{"text": f"row {i} é\n", "ids": [i, i + 1], "x": float("nan") if i else 1.5} for i in range(3000)]
        self.table = pyarrow.Table.from_pylist(self.rows)

    def path(self, name):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def rows_of(self, *argv):
        done = run("table_lines.py", *argv)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.decode().splitlines()], done.stderr.decode()

    def fails(self, status, part, *argv):
        done = run("table_lines.py", *argv)
        self.assertEqual((done.returncode, done.stderr.decode().count("\n")), (status, 1), done.stderr)
        self.assertIn(part, done.stderr.decode())
        return done.stdout

    def test_every_kind_of_table_gives_its_rows(self):
        want = [dict(r, x=1.5 if i == 0 else None) for i, r in enumerate(self.rows)]
        pyarrow.parquet.write_table(self.table, self.path("a.parquet"), row_group_size=700)
        with pyarrow.OSFile(self.path("b.arrow"), "wb") as f, pyarrow.ipc.new_stream(f, self.table.schema) as w:
            w.write_table(self.table)
        with pyarrow.OSFile(self.path("c.arrow"), "wb") as f, pyarrow.ipc.new_file(f, self.table.schema) as w:
            w.write_table(self.table)
        for name in ("a.parquet", "b.arrow", "c.arrow"):
            self.assertEqual(self.rows_of(self.path(name))[0], want, name)
        self.assertEqual(self.rows_of(self.path("a.parquet"), "--columns", "ids")[0], [{"ids": r["ids"]} for r in self.rows])
        self.fails(3, 'no column "body"; it has text, ids, x', self.path("a.parquet"), "--columns", "body")

    def test_a_directory_in_byte_order_without_what_is_hidden(self):
        for name in ("b/2.parquet", "a/1.parquet", "b/.hidden.parquet", ".git/0.parquet"):
            pyarrow.parquet.write_table(pyarrow.table({"text": [name]}), self.path(name))
        open(self.path("b/README.md"), "w").close()
        self.assertEqual([r["text"] for r in self.rows_of(self.dir)[0]], ["a/1.parquet", "b/2.parquet"])
        os.makedirs(self.path("empty/x"))
        self.fails(3, "holds no .parquet and no .arrow file", self.path("empty"))

    def test_bytes_are_left_out_and_said(self):
        table = pyarrow.table({"text": ["a"], "image": [{"bytes": b"\x00", "path": "p"}], "when": [pyarrow.scalar(0, pyarrow.timestamp("s")).as_py()]})
        pyarrow.parquet.write_table(table, self.path("a.parquet"))
        rows, said = self.rows_of(self.path("a.parquet"))
        self.assertEqual(rows, [{"text": "a", "when": "1970-01-01 00:00:00"}])
        self.assertIn("left out, being bytes: image", said)

    def test_a_failure_leaves_no_rows_that_look_whole(self):
        pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), self.path("a.parquet"))
        with open(self.path("b.parquet"), "wb") as f:
            f.write(b"PAR1 and no more")
        last = self.fails(5, "b.parquet", self.dir).splitlines()[-1]
        self.assertRaises(ValueError, json.loads, last)
        self.assertEqual(self.fails(4, "nowhere", self.path("nowhere")), b"")  # a line of words would be a text
        self.assertEqual(self.fails(5, "b.parquet", self.path("b.parquet")), b"")

    def test_a_pipe_of_both_scripts(self):
        os.makedirs(self.path("model/x"))
        with open(self.path("model/tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump({"chat_template": "{% if tools %}{{ tools | length }} tools {% endif %}{% for m in messages %}"
                                        "<{{ m.role }}>{{ m.content if m.content is string else m.content[0].text }}{% endfor %}"}, f)
        rows = [{"messages": [{"role": "user", "content": "a"}]}, {"conversations": [{"from": "human", "value": "b"}]},
                {"prompt": "c", "completion": "d"}, {"instruction": "e", "input": "f", "output": "g"},
                {"instruction": "h", "input": None, "output": "i"}, {"messages": [{"role": "tool", "content": "j"}], "tools": '[{"name": "k"}]'},
                {"prompt": [{"role": "user", "content": [{"type": "text", "text": "l"}]}], "completion": [{"role": "assistant", "content": "m"}]}]
        want = ["<user>a", "<user>b", "<user>c<assistant>d", "<user>e\nf<assistant>g", "<user>h<assistant>i", "1 tools <tool>j", "<user>l<assistant>m"]
        done = run("render_chat.py", self.path("model"), "-", "-", stdin="\n".join(map(json.dumps, rows)).encode())
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual([json.loads(line)["text"] for line in done.stdout.decode().splitlines()], want)
        done = run("render_chat.py", self.path("model"), "-", "-", stdin=b'{"messages": [{"role": "user", "content": "a"}]}\n{"text": "b"}\n')
        self.assertEqual(done.returncode, 3)
        self.assertIn(b'-:2: has no member "messages"; of its members text', done.stderr)
        self.assertRaises(ValueError, json.loads, done.stdout.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
