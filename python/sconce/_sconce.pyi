"""Types of the extension module."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

__all__ = [
    "Error",
    "Generation",
    "Model",
    "Placement",
    "Plan",
    "__version__",
    "init",
    "main",
    "models",
    "plan",
]

__version__: str

_Progress = bool | Callable[[str, int, int], object]
_Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
_Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]

class Error(Exception):
    code: str
    hint: str | None

@final
class Placement:
    @property
    def engine(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def weights(self) -> str: ...
    @property
    def dtype(self) -> str: ...

@final
class Plan:
    @property
    def chosen(self) -> Placement | None: ...
    @property
    def placements(self) -> list[Placement]: ...
    def to_dict(self) -> dict[str, Any]: ...
    def _repr_html_(self) -> str: ...

@final
class Generation(Iterator[str]):
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def generated_tokens(self) -> int: ...
    def text(self) -> str: ...
    def close(self) -> None: ...
    def __iter__(self) -> Generation: ...
    def __next__(self) -> str: ...

@final
class Model:
    def __new__(
        cls,
        name: str | os.PathLike[str],
        *,
        progress: _Progress | None = None,
        device: str | None = None,
        engine: str | None = None,
        dtype: str | None = None,
        weights: str | None = None,
        band: str | None = None,
        latency: bool = False,
        task: str | None = None,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        kv_cache_dtype: str | None = None,
        revision: str | None = None,
        threads: int | None = None,
        offline: bool = False,
    ) -> Model: ...
    @property
    def name(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def placement(self) -> Placement | None: ...
    @property
    def numerics_class(self) -> str | None: ...
    def embed(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        prefix: str | None = None,
        dimensions: int | None = None,
        force_dimensions: bool = False,
        normalize: bool | None = None,
        progress: _Progress | None = None,
    ) -> _Matrix: ...
    def embed_query(self, query: str) -> _Vector: ...
    def embed_documents(self, documents: Iterable[str], *, progress: _Progress | None = None) -> _Matrix: ...
    def rerank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        top: int | None = None,
        instruction: str | None = None,
        label: str | None = None,
    ) -> list[tuple[int, float]]: ...
    def classify(self, texts: Iterable[str]) -> list[list[tuple[str, float]]]: ...
    def similarity(self, text: str, others: Iterable[str]) -> _Vector: ...
    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        template: str | None = None,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] = {},
        seed: int | None = None,
        stop: Sequence[str] = [],
        ignore_eos: bool = False,
        json_object: bool = False,
        json_schema: Mapping[str, Any] | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> Generation: ...
    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] = {},
        seed: int | None = None,
        stop: Sequence[str] = [],
        ignore_eos: bool = False,
        json_object: bool = False,
        json_schema: Mapping[str, Any] | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> Generation: ...

def plan(
    name: str | os.PathLike[str],
    *,
    full: bool = False,
    progress: _Progress | None = None,
    device: str | None = None,
    engine: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    band: str | None = None,
    latency: bool = False,
    task: str | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    kv_cache_dtype: str | None = None,
    revision: str | None = None,
    threads: int | None = None,
    offline: bool = False,
) -> Plan: ...
def models(task: str | None = None) -> list[dict[str, Any]]: ...
def init(program: Sequence[str]) -> None: ...
def main(program: Sequence[str], arguments: Sequence[str]) -> int: ...
