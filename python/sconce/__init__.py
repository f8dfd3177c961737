"""Embeddings, reranking and text generation on the fastest placement that is proven correct on this machine."""

import glob
import importlib.util
import os
import sys

from . import _sconce
from ._sconce import Error, Generation, Model, Placement, Plan, __version__, models, plan

__all__ = ["Error", "Generation", "Model", "Placement", "Plan", "__version__", "models", "plan"]

# Probes run in child processes: this package, started as a folder, whatever the working directory and `sys.path` are.
# In an application with an interpreter inside, which can't be started as one, they run on a thread.
if "python" in os.path.basename(sys.executable or "").lower():
    _sconce.init([sys.executable, os.path.dirname(os.path.abspath(__file__))])

# The package `onnxruntime` has the library of ONNX Runtime. It is not imported.
if "ORT_DYLIB_PATH" not in os.environ and (_found := importlib.util.find_spec("onnxruntime")):
    for _folder in _found.submodule_search_locations or []:
        for _library in sorted(glob.glob(os.path.join(_folder, "capi", "libonnxruntime.*")))[:1]:
            os.environ["ORT_DYLIB_PATH"] = _library
