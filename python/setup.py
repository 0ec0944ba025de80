"""Puts the plugin into the package, where it has been built: `pip install ./python` then needs nothing else."""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LIBRARY = "liboffgraph_executorch.so"


class BuildWithPlugin(build_py):
    def run(self):
        super().run()
        built = Path(__file__).resolve().parent.parent / "build" / LIBRARY
        plugin = Path(os.environ.get("OFFGRAPH_EXECUTORCH_LIBRARY", built))
        if plugin.exists():
            shutil.copy(plugin, Path(self.build_lib) / "offgraph" / LIBRARY)


setup(cmdclass={"build_py": BuildWithPlugin})
