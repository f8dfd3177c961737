"""Runs the example against a Postgres with pgvector, which the package `pgserver` has: check.py MODEL."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pgserver

TEXTS = ["list.sort() orders it in place", "the harbour at night", 'a "quoted", text\twith\nspaces']


def search(*arguments, **settings):
    """The texts that the example prints, best first."""
    script = pathlib.Path(__file__).with_name("search")
    output = subprocess.check_output([script, *arguments], text=True, env=os.environ | settings)
    return [line.split("\t")[1] for line in output.splitlines()[: len(TEXTS)] if "\t" in line]


with tempfile.TemporaryDirectory() as folder:
    texts = pathlib.Path(folder, "texts.jsonl")
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with pgserver.get_server(pathlib.Path(folder, "data")) as database:
        settings = {"DATABASE_URL": database.get_uri(), "MODEL": sys.argv[1]}
        for _ in range(2):  # the second time, the texts are replaced
            assert search("how do I sort a list?", str(texts), **settings)[0] == TEXTS[0]
        assert search("ships at the quay", **settings)[0] == TEXTS[1]
print("ok: pgvector")
