"""Builds libexfold_fold and libexfold_accumulate of the tree that this folder lies in, with CUDA where nvcc is, and puts them beside the Python files.

    pip install ./python                  # BUILD and CUDA are those of make: CUDA=0 leaves the GPU out
"""
import os
import pathlib
import shutil
import subprocess
import tempfile

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

root = pathlib.Path(__file__).resolve().parents[1]
scratch = tempfile.TemporaryDirectory()  # what setuptools would leave in the tree


class WithLibrary(build_py):
    def run(self):
        super().run()
        build = root / os.environ.get("BUILD", "build")
        subprocess.run(["make", "-s", f"BUILD={build}", "fold-library", "record-library"], cwd=root, check=True)
        for name, package in ("fold", "exfold_vllm"), ("accumulate", "exfold_record"):
            for library in build.glob(f"libexfold_{name}.so.*"):
                shutil.copy(library, pathlib.Path(self.build_lib) / package)


class OfThisMachine(bdist_wheel):
    """A wheel for any Python 3 on machines of this kind: the library is no extension of Python."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(version=(root / "VERSION").read_text().strip(), cmdclass={"build_py": WithLibrary, "bdist_wheel": OfThisMachine},
      options={"build": {"build_base": scratch.name}, "egg_info": {"egg_base": scratch.name}})
