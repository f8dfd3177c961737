"""Embeddings, reranking and text generation on the fastest placement that is proven correct on this machine."""

import os
import sys

from . import _sconce
from ._sconce import Error, Generation, Model, Placement, Plan, __version__, models, plan

__all__ = ["Error", "Generation", "Model", "Placement", "Plan", "__version__", "models", "plan"]

# Probes run in child processes: this package, started as a folder, whatever the working directory and `sys.path` are.
# In an application with an interpreter inside, which can't be started as one, they run on a thread.
if "python" in os.path.basename(sys.executable or "").lower():
    _sconce.init([sys.executable, os.path.dirname(os.path.abspath(__file__))])
