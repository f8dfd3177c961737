"""Sends conversations through real client libraries to a server with SmolLM2, and checks the answers.

Called by scripts/clients: chat-clients.py ADDRESS MODEL
"""

import json
import os
import sys

# litellm would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import litellm
import ollama
import openai
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

address, model = sys.argv[1:]
question = "What is the capital of Japan?"
messages = [{"role": "user", "content": question}]
schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
person = [{"role": "user", "content": "Describe a person as JSON with a name and an age."}]


def is_person(text):
    value = json.loads(text)
    assert set(value) == {"name", "age"} and isinstance(value["age"], int), text


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"not refused with {kind}")


# openai: chat.completions
client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
arguments = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 40}
answer = client.chat.completions.create(**arguments)
expected = answer.choices[0].message.content
assert "Tokyo" in expected, expected
assert answer.choices[0].finish_reason == "stop" and answer.model == model
assert answer.usage.prompt_tokens > 5 and answer.usage.completion_tokens > 3
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert streamed == expected, streamed
assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
likely = client.chat.completions.create(**arguments, logprobs=True, top_logprobs=3).choices[0].logprobs.content
assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in likely)
assert all(token.top_logprobs[0].token == token.token for token in likely), "greedy tokens are the most likely"
assert expected in "".join(token.token for token in likely)
seeded = {"model": model, "messages": messages, "temperature": 1.5, "max_tokens": 20}
draws = [client.chat.completions.create(**seeded, seed=seed).choices[0].message.content for seed in (7, 7, 8)]
assert draws[0] == draws[1] != draws[2], draws
form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
is_person(
    client.chat.completions.create(
        model=model, messages=person, temperature=0, max_tokens=100, response_format=form
    ).choices[0].message.content
)
refused(openai.NotFoundError, lambda: client.chat.completions.create(model="other", messages=messages))
refused(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=messages, temperature=-1))
assert client.completions.create(model=model, prompt="Once upon a", temperature=0, max_tokens=4).choices[0].text

# openai: responses
arguments = {"model": model, "input": question, "temperature": 0, "max_output_tokens": 40}
response = client.responses.create(**arguments)
assert response.output_text == expected and response.status == "completed", response
assert response.usage.output_tokens == answer.usage.completion_tokens
events = list(client.responses.create(**arguments, stream=True))
assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected
assert [event.sequence_number for event in events] == list(range(len(events)))
assert events[-1].type == "response.completed" and events[-1].response.output_text == expected
with client.responses.stream(**arguments) as stream:
    assert stream.get_final_response().output_text == expected
cut = client.responses.create(**{**arguments, "max_output_tokens": 2})
assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
text = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
is_person(client.responses.create(model=model, input=person, temperature=0, max_output_tokens=100, text=text).output_text)
refused(openai.BadRequestError, lambda: client.responses.create(**arguments, previous_response_id="resp_1"))

# ollama
client = ollama.Client(address)
assert [listed.model for listed in client.list().models] == [model]
assert [listed.model for listed in client.ps().models] == [model]
assert "completion" in client.show(model).capabilities
greedy = {"temperature": 0, "num_predict": 40}
answer = client.chat(f"{model}:latest", messages, options=greedy)
assert answer.message.content == expected and answer.done_reason == "stop", answer
assert answer.prompt_eval_count > 5 and answer.eval_count > 3 and answer.total_duration > answer.eval_duration > 0
lines = list(client.chat(model, messages, options=greedy, stream=True))
assert "".join(line.message.content for line in lines) == expected
assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
assert client.generate(model, question, options=greedy).response == expected
assert "".join(line.response for line in client.generate(model, question, options=greedy, stream=True)) == expected
assert client.generate(model, "Once upon a", raw=True, options={"num_predict": 2}).done_reason == "length"
is_person(client.chat(model, person, format=schema, options={"temperature": 0, "num_predict": 100}).message.content)
assert refused(ollama.ResponseError, lambda: client.chat("other", messages)).status_code == 404
assert refused(ollama.ResponseError, lambda: client.embed(model, "a")).status_code == 400

# anthropic
client = anthropic.Anthropic(base_url=address, api_key="any", max_retries=0)
# The client has no `temperature`; the protocol has.
arguments = {"model": model, "messages": messages, "extra_body": {"temperature": 0}, "max_tokens": 40}
answer = client.messages.create(**arguments)
assert answer.content[0].text == expected and answer.stop_reason == "end_turn", answer
tokens = client.messages.count_tokens(model=model, messages=messages).input_tokens
assert tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 5
with client.messages.stream(**arguments) as stream:
    assert "".join(stream.text_stream) == expected
    final = stream.get_final_message()
assert final.content[0].text == expected and final.usage.output_tokens == answer.usage.output_tokens
stopped = client.messages.create(**arguments, stop_sequences=["never there", "Tokyo"])
assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Tokyo"), stopped
assert client.messages.create(**{**arguments, "max_tokens": 2}).stop_reason == "max_tokens"
assert client.messages.create(**arguments, system="Answer briefly.").content[0].text
error = refused(anthropic.NotFoundError, lambda: client.messages.create(**{**arguments, "model": "other"}))
assert error.body["error"]["type"] == "not_found_error", error.body
refused(anthropic.BadRequestError, lambda: client.messages.create(**{**arguments, "max_tokens": 0}))

# LangChain
chat = ChatOpenAI(model=model, base_url=f"{address}/v1", api_key="any", temperature=0, max_tokens=40)
answer = chat.invoke([HumanMessage(question)])
assert answer.content == expected and answer.usage_metadata["output_tokens"] > 3, answer
assert "".join(chunk.content for chunk in chat.stream([HumanMessage(question)])) == expected
assert chat.invoke([SystemMessage("Answer briefly."), HumanMessage(question)]).content
structured = chat.bind(max_tokens=100).bind(response_format=form)
is_person(structured.invoke(person).content)

# litellm
litellm.suppress_debug_info = True
for provider, base in (("openai", f"{address}/v1"), ("ollama_chat", address), ("anthropic", address)):
    arguments = {
        "model": f"{provider}/{model}", "api_base": base, "api_key": "any", "messages": messages, "temperature": 0,
        "max_tokens": 40,
    }
    answer = litellm.completion(**arguments)
    assert answer.choices[0].message.content == expected and answer.usage.completion_tokens > 3, (provider, answer)
    chunks = litellm.completion(**arguments, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected, provider

print("openai, ollama, anthropic, langchain and litellm: ok")
