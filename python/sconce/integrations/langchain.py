"""Embeddings for LangChain, computed in this process."""

from langchain_core.embeddings import Embeddings

from .. import Model


class SconceEmbeddings(Embeddings):
    """Embeddings of a model: `SconceEmbeddings(Model("e5-small"))`."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self.model.embed_documents(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        vector: list[float] = self.model.embed_query(text).tolist()
        return vector
