"""Embedders for Haystack, computed in this process."""

from dataclasses import replace
from typing import Any

from haystack import Document, component

from .. import Model


@component
class SconceTextEmbedder:
    """Embeds a query: `SconceTextEmbedder("e5-small")`. Options are those of `sconce.Model`."""

    def __init__(self, model: str, options: dict[str, Any] | None = None) -> None:
        self.model, self.options = model, options
        self._model: Model | None = None

    def warm_up(self) -> None:
        self._model = self._model or Model(self.model, **self.options or {})

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        self.warm_up()
        assert self._model
        return {"embedding": self._model.embed_query(text).tolist()}


@component
class SconceDocumentEmbedder:
    """Embeds documents: `SconceDocumentEmbedder("e5-small")`. Options are those of `sconce.Model`."""

    def __init__(self, model: str, options: dict[str, Any] | None = None) -> None:
        self.model, self.options = model, options
        self._model: Model | None = None

    def warm_up(self) -> None:
        self._model = self._model or Model(self.model, **self.options or {})

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        self.warm_up()
        assert self._model
        vectors = self._model.embed_documents(document.content or "" for document in documents).tolist()
        return {"documents": [replace(document, embedding=row) for document, row in zip(documents, vectors)]}
