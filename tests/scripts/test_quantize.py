"""quantize_experts.py: every format on numbers small enough to round by hand, and what it writes.

make check-scripts runs it; it needs numpy and fails without.
"""
import contextlib
import io
import json
import os
import struct
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "scripts"))
import quantize_experts as q

EXPERT = "model.layers.0.mlp.experts.0.up_proj.weight"


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, array) in tensors.items():
        bits = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(bits)]}
        data += bits
    head = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + data)


class Numbers(unittest.TestCase):
    def test_integers_with_a_zero_point(self):
        w = np.array([[-1.0, 0.0, 0.4, 0.6, 14.0], [0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 7.6, 15.0]])
        self.assertEqual(q.int4(np, w).tolist(), [[-1, 0, 0, 1, 14], [0] * 5, [1, 2, 3, 8, 15]])

    def test_symmetric_integers(self):
        w = np.array([[-7.5, 0.4, 0.6, 3.0, 7.5]])
        self.assertEqual(q.int4_sym(np, w).tolist(), [[-8, 0, 1, 3, 7]])

    def test_small_floats(self):
        self.assertEqual(q.float_grid(np, 2, 1, 6).tolist(), [0, 0.5, 1, 1.5, 2, 3, 4, 6])
        e4m3 = q.float_grid(np, 4, 3, 448)
        self.assertEqual((len(e4m3), e4m3[1], e4m3[-1], e4m3[-2]), (127, 2.0 ** -9, 448, 416))
        values = np.array([0.25, 0.75, -2.5, 5.0, 5.1, 99])  # ties go to the even place
        self.assertEqual(q.round_to(np, q.float_grid(np, 2, 1, 6), values).tolist(), [0, 1, -2, 4, 6, 6])
        w = np.array([[448.0, 431.0, 433.0, -1.06]])
        self.assertEqual(q.fp8(np, w).tolist(), [[448, 416, 448, -1.0]])

    def test_two_scales(self):
        w = np.zeros((2, 16))
        w[0, :3], w[1, :3] = [6 * 448, 1300, -100], [6, 2.4, 0.4]
        self.assertEqual(q.nvfp4(np, w)[:, :3].tolist(), [[2688, 1344, 0], [6, 2, 0.5]])

    def test_bfloat16(self):
        bits = q.f32_to_bf16(np, np.array([1.0, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -2.5], dtype=np.float32))
        self.assertEqual(q.bf16_to_f32(np, bits).tolist(), [1, 1, 1 + 2 ** -6, -2.5])

    def test_groups(self):
        w = np.array([[15.0, 0.6, 1.5, 0.06], [30.0, 1.2, 3.0, 0.12]])
        self.assertTrue(np.allclose(q.in_groups(np, w, "int4", 2), [[15, 1, 1.5, 0.1], [30, 2, 3, 0.2]], rtol=1e-3))
        self.assertEqual(q.in_groups(np, w, "int4", 128).tolist(), [[15, 1, 2, 0], [30, 2, 4, 0]])  # a row is a group


class Checkpoints(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = directory.name
        os.mkdir(self.path("model"))
        self.w = np.array([[15.0, 0.6], [7.5, 0.2]], dtype=np.float32)
        self.write({EXPERT: ("F32", self.w), "model.norm.weight": ("F32", self.w)})
        with open(self.path("model", "config.json"), "w", encoding="utf-8") as f:
            f.write("{}")

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def write(self, tensors):
        write_safetensors(self.path("model", "model.safetensors"), tensors)

    def main(self, *argv):
        out, err = io.StringIO(), io.StringIO()
        argv = ["quantize_experts.py", self.path("model"), self.path("out"), *argv]
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                q.run(q.main)
            except SystemExit as e:
                return e.code, out.getvalue(), err.getvalue()
        return 0, out.getvalue(), err.getvalue()

    def tensor(self, name):
        with open(self.path("out", "model.safetensors"), "rb") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            at = json.loads(f.read(n))[name]["data_offsets"]
            f.seek(8 + n + at[0])
            return np.frombuffer(f.read(at[1] - at[0]), dtype=np.float32).reshape(2, 2)

    def test_experts_alone_are_rounded(self):
        status, out, err = self.main()
        self.assertEqual((status, err), (0, ""))
        self.assertIn("1 matrices in int4", out)
        self.assertEqual(self.tensor(EXPERT).tolist(), [[15, 1], [7.5, 0]])
        self.assertTrue((self.tensor("model.norm.weight") == self.w).all())
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["config.json", "model.safetensors"])
        self.assertEqual(self.main()[0], 4)  # nothing is replaced

    def test_refusals_leave_nothing(self):
        self.assertEqual(self.main("--match", "nothing")[0], 3)
        self.assertEqual(self.main("--format", "nvfp4")[0], 3)  # two columns
        self.write({EXPERT: ("I8", np.zeros((2, 2), dtype=np.int8))})
        status, out, err = self.main()
        self.assertEqual((status, out), (3, ""))
        self.assertIn(EXPERT, err)
        self.assertFalse(os.path.exists(self.path("out")))

    def meanwhile(self, name, text):
        """Has somebody else put a file into OUTDIR while a matrix is rounded."""
        def rounded(*args):
            with open(self.path("out", name), "w", encoding="utf-8") as f:
                f.write(text)
            return round_tensor(*args)

        round_tensor = q.round_tensor
        return mock.patch.object(q, "round_tensor", rounded)

    def test_files_of_others_stay(self):
        with self.meanwhile("notes", "mine"):
            self.assertEqual(self.main("--format", "nvfp4")[0], 3)
        self.assertEqual(os.listdir(self.path("out")), ["notes"])
        os.unlink(self.path("out", "notes"))
        os.rmdir(self.path("out"))
        with open(self.path("model", "vocab.json"), "w", encoding="utf-8") as f:
            f.write("{}")
        with self.meanwhile("vocab.json", "mine"):  # where the script is about to write
            self.assertEqual(self.main()[0], 4)
        self.assertEqual(os.listdir(self.path("out")), ["vocab.json"])
        with open(self.path("out", "vocab.json"), encoding="utf-8") as f:
            self.assertEqual(f.read(), "mine")


if __name__ == "__main__":
    unittest.main()
