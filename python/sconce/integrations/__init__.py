"""Adapters for LangChain, LlamaIndex and Haystack. Each needs the package of its framework."""
