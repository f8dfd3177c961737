"""Sends requests through real client libraries and compares the responses with the output of the command.

Called by scripts/clients: clients.py SCONCE MINILM_ADDRESS RERANKER_ADDRESS
"""

import json
import subprocess
import sys

import cohere
import openai
from huggingface_hub import InferenceClient

sconce, minilm, reranker = sys.argv[1:]
texts = ["A sconce holds a candle in its place.", "how do I place a model on the right device?"]
documents = ["the candle burns", "a text about something else", "its place"]


def command(*arguments):
    done = subprocess.run([sconce, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def near(a, b, tolerance=1e-3):
    """Whether two unit vectors are equal within the tolerance."""
    assert len(a) == len(b), (len(a), len(b))
    cosine = sum(x * y for x, y in zip(a, b))
    assert abs(1 - cosine) < tolerance, cosine


lines = command("embed", "target/parts/minilm", "--offline", *texts).splitlines()
expected = [json.loads(line)["embedding"] for line in lines]

# openai: base64, the default of its client, and floats.
client = openai.OpenAI(base_url=f"{minilm}/v1", api_key="any", max_retries=0)
assert [model.id for model in client.models.list()] == ["minilm"]
for arguments in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
    answer = client.embeddings.create(model="minilm", input=texts, **arguments)
    assert answer.usage.total_tokens > 10 and answer.model == "minilm"
    for item, vector in zip(answer.data, expected):
        if isinstance(item.embedding, str):
            import array
            import base64

            item.embedding = list(array.array("f", base64.b64decode(item.embedding)))
        near(item.embedding, vector)
near(client.embeddings.create(model="minilm", input=texts[0]).data[0].embedding, expected[0])
raw = client.embeddings.with_raw_response.create(model="minilm", input=texts, user="me")
assert raw.headers["x-sconce-ignored"] == "user" and "cpu" in raw.headers["x-sconce-placement"]
for wrong, kind in (
    ({"model": "other", "input": "a"}, openai.NotFoundError),
    ({"model": "minilm", "input": "a", "dimensions": 7}, openai.BadRequestError),
    ({"model": "minilm", "input": []}, openai.BadRequestError),
    ({"model": "minilm", "input": "word " * 2000}, openai.BadRequestError),
):
    try:
        client.embeddings.create(**wrong)
        raise AssertionError(f"{wrong} was answered")
    except kind as error:
        assert error.body["message"], error

# huggingface_hub.
hub = InferenceClient(model=minilm)
near([float(x) for x in hub.feature_extraction(texts[0])[0]], expected[0])
near([float(x) for x in hub.feature_extraction(texts[1], normalize=True, truncate=True)[0]], expected[1])
similarity = hub.sentence_similarity(texts[0], other_sentences=texts)
assert abs(similarity[0] - 1) < 1e-3 and similarity[1] < 0.9, similarity

# cohere, both API versions.
said = json.loads(
    command("rerank", "crates/testkit/goldens/tiny-bert-rerank", "--offline", "--json", "--query", texts[0], *documents)
)
order = [(line["index"], line["score"]) for line in said["ranked"]]
for rank in (
    cohere.ClientV2(api_key="any", base_url=reranker).rerank,
    cohere.Client(api_key="any", base_url=reranker).rerank,
):
    answer = rank(model="tiny-bert-rerank", query=texts[0], documents=documents)
    got = [(result.index, result.relevance_score) for result in answer.results]
    assert [index for index, _ in got] == [index for index, _ in order], (got, order)
    assert all(abs(a - b) < 1e-3 for (_, a), (_, b) in zip(got, order)), (got, order)
    best = rank(model="tiny-bert-rerank", query=texts[0], documents=documents, top_n=1)
    assert [result.index for result in best.results] == [order[0][0]]
try:
    cohere.ClientV2(api_key="any", base_url=reranker).rerank(model="none", query="a", documents=["b"])
    raise AssertionError("an unknown model was answered")
except cohere.errors.NotFoundError:
    pass

kinds = ["float", "int8", "uint8", "binary", "ubinary"]
answer = cohere.ClientV2(api_key="any", base_url=minilm).embed(
    model="minilm", texts=texts, input_type="search_document", embedding_types=kinds
)
for at, vector in enumerate(expected):
    near(answer.embeddings.float_[at], vector)
    bytes_ = answer.embeddings.int8[at]
    length = sum(x * x for x in bytes_) ** 0.5
    near([x / length for x in bytes_], vector)
    assert answer.embeddings.uint8[at] == [x + 128 for x in bytes_]
    bits = [int(x > 0) for x in answer.embeddings.float_[at]]
    packed = [int("".join(map(str, bits[place : place + 8])), 2) for place in range(0, len(bits), 8)]
    assert answer.embeddings.ubinary[at] == packed
    assert answer.embeddings.binary[at] == [x - 128 for x in packed]

print(f"openai {openai.__version__}, cohere {cohere.__version__}, huggingface_hub: equal to the command's output")
