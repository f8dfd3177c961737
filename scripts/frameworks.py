"""Sends requests through RAG frameworks and compares the responses with the output of the command.

Called by scripts/clients: frameworks.py SCONCE MINILM_ADDRESS RERANKER_ADDRESS BOTH_ADDRESS, where the last address
serves both models. TIKTOKEN_CACHE_DIR holds the vocabulary that LangChain cuts texts with by default.
"""

import asyncio
import importlib.metadata
import json
import math
import subprocess
import sys

import openai
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction
from haystack import Document
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

sconce, minilm, reranker, both = sys.argv[1:]
texts = ["A sconce holds a candle in its place.", "how do I place a model on the right device?"]
documents = ["the candle burns", "a text about something else", "its place"]


def command(*arguments):
    return subprocess.run([sconce, *arguments], check=True, capture_output=True, text=True).stdout


def near(a, b, tolerance=1e-3):
    """Whether two vectors have the same direction, NaN never."""
    assert len(a) == len(b), (len(a), len(b))
    length = math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
    cosine = sum(float(x) * float(y) for x, y in zip(a, b)) / length
    assert abs(1 - cosine) < tolerance, cosine


def all_near(vectors, wanted):
    assert len(vectors) == len(wanted), (len(vectors), len(wanted))
    for vector, want in zip(vectors, wanted):
        near(vector, want)


lines = command("embed", "target/parts/minilm", "--offline", *texts).splitlines()
expected = [json.loads(line)["embedding"] for line in lines]

# LangChain sends tiktoken ids by default: rejected, with the setting that sends texts.
default = OpenAIEmbeddings(model="minilm", base_url=f"{minilm}/v1", api_key="any", max_retries=0)
for ask in (lambda: default.embed_documents(texts), lambda: default.embed_query(texts[0])):
    try:
        raise AssertionError(f"token ids were answered: {ask()}")
    except openai.BadRequestError as error:
        assert "token ids" in str(error) and "check_embedding_ctx_length=False" in str(error), error
# Clients with only a base URL select a model by it. If one model has the task, no name is needed.
for base in (f"{minilm}/v1", f"{both}/models/minilm/v1", f"{both}/v1"):
    langchain = OpenAIEmbeddings(
        model="minilm", base_url=base, api_key="any", max_retries=0, check_embedding_ctx_length=False
    )
    all_near(langchain.embed_documents(texts), expected)
    near(langchain.embed_query(texts[1]), expected[1])
all_near(asyncio.run(langchain.aembed_documents(texts)), expected)

# LlamaIndex, with the OpenAI and the TEI API.
for base in (minilm, both, f"{both}/models/minilm"):
    by_openai = OpenAIEmbedding(model_name="minilm", api_base=f"{base}/v1", api_key="any", max_retries=0)
    by_tei = TextEmbeddingsInference(model_name="minilm", base_url=base)
    for index in (by_openai, by_tei):
        all_near(index.get_text_embedding_batch(texts), expected)
        near(index.get_query_embedding(texts[1]), expected[1])
    all_near(asyncio.run(by_tei.aget_text_embedding_batch(texts)), expected)

# Haystack's components for TEI. Its ranker calls `/rerank` of the host and ignores the path of its URL.
for url in (minilm, both):
    reads = {"api_type": "text_embeddings_inference", "api_params": {"url": url}}
    near(HuggingFaceAPITextEmbedder(**reads).run(texts[0])["embedding"], expected[0])
    near(HuggingFaceAPITextEmbedder(normalize=True, **reads).run(texts[1])["embedding"], expected[1])
    embedded = HuggingFaceAPIDocumentEmbedder(progress_bar=False, **reads).run([Document(content=text) for text in texts])
    all_near([document.embedding for document in embedded["documents"]], expected)
said = json.loads(
    command("rerank", "crates/testkit/goldens/tiny-bert-rerank", "--offline", "--json", "--query", texts[0], *documents)
)
order = [(documents[line["index"]], line["score"]) for line in said["ranked"]]
for url in (reranker, both):
    ranked = HuggingFaceTEIRanker(url=url).run(query=texts[0], documents=[Document(content=text) for text in documents])
    got = [(document.content, document.score) for document in ranked["documents"]]
    assert [text for text, _ in got] == [text for text, _ in order], (got, order)
    assert all(abs(a - b) < 1e-3 for (_, a), (_, b) in zip(got, order)), (got, order)

# Chroma's function for OpenAI.
for base in (f"{minilm}/v1", f"{both}/models/minilm/v1"):
    all_near(OpenAIEmbeddingFunction(api_key="any", model_name="minilm", api_base=base)(texts), expected)

names = ["langchain-openai", "llama-index-core", "haystack-ai", "chromadb"]
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names) + ": equal to the command's output")
