"""Lets torch 1.13, which Debian 12 has, load floating-point numbers with weights_only=True.

Its restricted unpickler lacks the one opcode for them (pytorch issue 94670, mended in
2.0).  This adds that opcode to it and nothing else: what it lets a file name stays as
narrow as torch made it.  Newer versions are left alone.

usage: old_torch.py SCRIPT [ARGUMENT ...] runs the script so.
"""
import inspect
import runpy
import sys

import torch

if torch.__version__.startswith("1."):
    import torch._weights_only_unpickler as restricted

    source = inspect.getsource(restricted)
    before = "            elif key[0] == BINUNICODE[0]:\n"
    assert source.count(before) == 1 and "BINFLOAT" not in source
    added = '            elif key[0] == b"G"[0]:\n                self.append(unpack(">d", read(8))[0])\n'
    exec(compile(source.replace(before, added + before), restricted.__file__, "exec"), restricted.__dict__)

if __name__ == "__main__":
    sys.argv.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
