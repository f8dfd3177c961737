"""The adapters, in the frameworks that they are for."""

import asyncio
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from haystack import Document, Pipeline
from haystack.core.serialization import allow_deserialization_module
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.base.embeddings.base import similarity
from models import MINILM
from sconce import Model
from sconce.integrations.haystack import SconceDocumentEmbedder, SconceTextEmbedder
from sconce.integrations.langchain import SconceEmbeddings
from sconce.integrations.llama_index import SconceEmbedding

TEXTS = ["a holder for candles", "the harbour at night", "list.sort() orders a list"]
QUERY = "where does a candle go?"


class Adapters(unittest.TestCase):
    model = Model(MINILM, offline=True)

    def test_langchain(self) -> None:
        embeddings = SconceEmbeddings(self.model)
        np.testing.assert_allclose(embeddings.embed_documents(TEXTS), self.model.embed_documents(TEXTS), atol=1e-6)
        store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
        [found] = store.similarity_search(QUERY, k=1)
        self.assertEqual(found.page_content, TEXTS[0])

    def test_llama_index(self) -> None:
        embedding = SconceEmbedding(self.model)
        texts = embedding.get_text_embedding_batch(TEXTS)
        query = embedding.get_query_embedding(QUERY)
        self.assertEqual(max(range(3), key=lambda index: similarity(query, texts[index])), 0)
        again = asyncio.run(embedding.aget_query_embedding(QUERY))
        np.testing.assert_allclose(again, query, atol=1e-6)

    def test_haystack(self) -> None:
        options = {"offline": True}
        pipeline = Pipeline()
        pipeline.add_component("embedder", SconceDocumentEmbedder(str(MINILM), options))
        allow_deserialization_module("sconce.integrations.haystack")
        pipeline = Pipeline.from_dict(pipeline.to_dict())
        result = pipeline.run({"embedder": {"documents": [Document(content=text) for text in TEXTS]}})
        vectors = [document.embedding for document in result["embedder"]["documents"]]
        np.testing.assert_allclose(vectors, self.model.embed_documents(TEXTS), atol=1e-6)
        query = SconceTextEmbedder(str(MINILM), options).run(QUERY)["embedding"]
        self.assertEqual(int(np.argmax(np.array(vectors) @ query)), 0)


if __name__ == "__main__":
    unittest.main()
