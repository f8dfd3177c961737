"""Sends conversations with tools through real client libraries to a server with a random model, and checks the calls.

Called by scripts/clients: tool-clients.py ADDRESS MODEL

The chat template is Qwen's. The calls that a request demands are valid, not clever.
"""

import json
import os
import sys

# litellm would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import litellm
import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

address, model = sys.argv[1:]
messages = [{"role": "user", "content": "What is the weather?"}]
schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
function = {"name": "weather", "description": "The weather of the next days.", "parameters": schema}
tools = [{"type": "function", "function": function}]


def check(name, arguments):
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert name == "weather" and set(value) == {"city", "days"}, (name, value)
    assert len(value["city"]) <= 8 and 1 <= value["days"] <= 9, value


# openai
client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
arguments = {"model": model, "messages": messages, "tools": tools, "max_tokens": 800, "seed": 1}
choice = client.chat.completions.create(**arguments, tool_choice="required").choices[0]
assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
for call in choice.message.tool_calls:
    check(call.function.name, call.function.arguments)
streamed = []
for chunk in client.chat.completions.create(**arguments, tool_choice="required", stream=True):
    for call in chunk.choices[0].delta.tool_calls or []:
        if call.index == len(streamed):
            assert call.id.startswith("call_")
            streamed.append([call.function.name, ""])
        streamed[call.index][1] += call.function.arguments or ""
assert streamed == [[call.function.name, call.function.arguments] for call in choice.message.tool_calls]
named = {"type": "function", "function": {"name": "weather"}}
[call] = client.chat.completions.create(**arguments, tool_choice=named).choices[0].message.tool_calls
check(call.function.name, call.function.arguments)
# The answer of a tool is a message.
history = [*messages, choice.message, {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "rain"}]
assert client.chat.completions.create(**{**arguments, "messages": history, "max_tokens": 4}).usage.completion_tokens > 0
response = client.responses.create(
    model=model, input="What is the weather?", tools=[{"type": "function", "strict": True, **function}],
    tool_choice="required", parallel_tool_calls=False, max_output_tokens=800,
)
[item] = response.output
check(item.name, item.arguments)

# anthropic
client = anthropic.Anthropic(base_url=address, api_key="any", max_retries=0)
definition = {"name": "weather", "description": "The weather.", "input_schema": schema}
arguments = {"model": model, "messages": messages, "tools": [definition], "tool_choice": {"type": "any"}, "max_tokens": 800}
answer = client.messages.create(**arguments)
assert answer.stop_reason == "tool_use", answer
for block in answer.content:
    check(block.name, block.input)
with client.messages.stream(**arguments) as stream:
    for block in stream.get_final_message().content:
        check(block.name, block.input)


# LangChain
@tool("weather", args_schema=schema)
def weather(city, days):
    """The weather of the next days."""


chat = ChatOpenAI(model=model, base_url=f"{address}/v1", api_key="any", max_tokens=800, seed=2)
answer = chat.bind_tools([weather], tool_choice="required").invoke("What is the weather?")
assert answer.tool_calls and not answer.invalid_tool_calls, answer
for call in answer.tool_calls:
    check(call["name"], call["args"])

# litellm
litellm.suppress_debug_info = True
answer = litellm.completion(
    model=f"openai/{model}", api_base=f"{address}/v1", api_key="any", messages=messages, tools=tools,
    tool_choice="required", max_tokens=800, seed=3,
)
for call in answer.choices[0].message.tool_calls:
    check(call.function.name, call.function.arguments)

print("tools of openai, anthropic, langchain and litellm: ok")
