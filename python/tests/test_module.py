"""Plans, the catalogue, the command, and use in a notebook."""

import asyncio
import io
import json
import os
import subprocess
import sys
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import sconce
from models import GOLDENS, MINILM, ROOT

COMMAND = Path(sys.executable).with_name("sconce")


def run(*words: str | Path, cwd: Path | str = ROOT) -> tuple[int, str, str]:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


class Plans(unittest.TestCase):
    def test_a_plan_is_a_table(self) -> None:
        plan = sconce.plan(MINILM, offline=True)
        assert plan.chosen
        self.assertIn(plan.chosen, plan.placements)
        lines = repr(plan).splitlines()
        self.assertIn("6 layers, hidden size 384", lines[0])
        self.assertIn("texts/s", lines[2])
        self.assertTrue(lines[3].startswith("chosen") or lines[3].startswith(" chosen"), lines[3])
        html = plan._repr_html_()
        self.assertIn("<th>texts/s</th>", html)
        self.assertEqual(html.count("<tr>"), 1 + len(plan.placements))
        self.assertEqual(plan.to_dict()["card"]["sizes"]["value"]["hidden"], 384)

    def test_a_plan_without_a_placement_has_reasons(self) -> None:
        plan = sconce.plan(MINILM, device="cuda:7", offline=True)
        self.assertIsNone(plan.chosen)
        self.assertIn("cuda:7", repr(plan))

    def test_the_catalogue_lists_models(self) -> None:
        names = {model["name"] for model in sconce.models()}
        self.assertIn("minilm", names)
        self.assertLess({model["name"] for model in sconce.models("rerank")}, names)


class Command(unittest.TestCase):
    def test_the_version_is_that_of_the_module(self) -> None:
        for words in ([COMMAND], [sys.executable, "-m", "sconce"]):
            self.assertEqual(run(*words, "--version"), (0, f"sconce {sconce.__version__}\n", ""))

    def test_exit_codes(self) -> None:
        code, _, error = run(COMMAND, "embed")
        self.assertEqual(code, 2)
        self.assertIn("Usage: sconce embed", error)
        code, _, error = run(COMMAND, "plan", MINILM, "--device", "cuda:7", "--offline")
        self.assertEqual(code, 1, error)
        code, _, error = run(COMMAND, "embed", "no/such-model", "--offline", "a text")
        self.assertEqual(code, 2)
        self.assertIn("error: ", error)

    def test_the_command_computes_what_the_module_computes(self) -> None:
        code, output, error = run(COMMAND, "embed", MINILM, "--offline", "a candle holder")
        self.assertEqual(code, 0, error)
        vector = np.array(json.loads(output)["embedding"], dtype=np.float32)
        np.testing.assert_allclose(sconce.Model(MINILM, offline=True).embed(["a candle holder"])[0], vector, atol=1e-6)

    def test_the_command_proves_in_a_folder_with_other_modules(self) -> None:
        with TemporaryDirectory() as folder:
            for name in ("sconce.py", "_sconce.py", "json.py"):
                (Path(folder) / name).write_text("raise SystemExit('the wrong module')")
            variables = os.environ | {"SCONCE_HOME": f"{folder}/home"}
            words: list[str | Path] = [COMMAND, "plan", GOLDENS / "tiny-bert", "--offline", "--json"]
            done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("crashed", done.stdout)


class Notebook(unittest.TestCase):
    def test_cells_run_in_an_event_loop_with_replaced_streams(self) -> None:
        """A kernel replaces `sys.stdout` and `sys.stderr`, and runs cells inside of an event loop."""
        cells = [
            "import sconce",
            f"model = sconce.Model({str(MINILM)!r}, offline=True, progress=True)",
            "vectors = model.embed(['a candle holder'] * 20, progress=True)",
            "task = asyncio.to_thread(model.embed_query, 'where does a candle go?')",
            "html = model.plan._repr_html_()",
            "print(repr(model.plan))",
        ]
        names: dict[str, object] = {"asyncio": asyncio}

        async def kernel() -> object:
            for cell in cells:
                exec(compile(cell, "cell", "exec"), names)
            return await names["task"]  # type: ignore[misc]

        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            query = asyncio.run(kernel())
        assert isinstance(query, np.ndarray)
        self.assertEqual(query.shape, (384,))
        self.assertIn("texts/s", stdout.getvalue())
        self.assertIn("embedding [", stderr.getvalue())


if __name__ == "__main__":
    unittest.main()
