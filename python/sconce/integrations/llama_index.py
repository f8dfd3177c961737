"""Embeddings for LlamaIndex, computed in this process."""

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr

from .. import Model


class SconceEmbedding(BaseEmbedding):
    """Embeddings of a model: `SconceEmbedding(Model("e5-small"))`."""

    _model: Model = PrivateAttr()

    def __init__(self, model: Model, **fields: Any) -> None:
        super().__init__(model_name=model.name, **fields)
        self._model = model

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._model.embed_query(query).tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._model.embed_documents(texts).tolist()
        return vectors

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)
