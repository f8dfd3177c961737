"""`sconce.Model`: embeddings, scores, errors, threads, progress and signals."""

import io
import json
import os
import signal
import sys
import threading
import time
import unittest
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import sconce
from models import GOLDENS, MINILM, TEXTS

SHORT = ["a candle holder", "the harbour at night"]


def interrupt_after(seconds: float) -> threading.Timer:
    """Sends SIGINT to this process, as Ctrl-C does."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


class Embeddings(unittest.TestCase):
    model: sconce.Model
    texts: list[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.model = sconce.Model(MINILM, offline=True)
        cls.texts = [json.loads(line)["text"] for line in TEXTS.read_text().splitlines()]

    def test_an_array_has_a_row_per_text_and_owns_the_memory_of_rust(self) -> None:
        vectors = self.model.embed(SHORT)
        self.assertEqual((vectors.shape, vectors.dtype), ((2, 384), np.float32))
        self.assertTrue(vectors.flags.c_contiguous and vectors.flags.writeable)
        self.assertFalse(vectors.flags.owndata, "a copy was made")
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        self.assertEqual(self.model.embed([]).shape, (0, 384))

    def test_queries_documents_and_iterables(self) -> None:
        vectors = self.model.embed(SHORT)
        query = self.model.embed_query(SHORT[0])
        self.assertEqual(query.shape, (384,))
        np.testing.assert_allclose(query, vectors[0], atol=1e-6)
        np.testing.assert_allclose(self.model.embed_documents(text for text in SHORT), vectors, atol=1e-6)
        np.testing.assert_allclose(self.model.embed(np.array(SHORT)), vectors, atol=1e-6)
        np.testing.assert_allclose(self.model.similarity(SHORT[0], SHORT), vectors @ vectors[0], atol=1e-5)

    def test_truncated_texts_are_counted_in_a_warning(self) -> None:
        with self.assertWarnsRegex(UserWarning, "1 of 2 texts are longer than 256 tokens and were truncated"):
            self.model.embed(["word " * 3000, "short"])

    def test_a_text_that_is_none_is_named_by_its_index(self) -> None:
        with self.assertRaisesRegex(TypeError, "text 2 is .*NoneType.*, not a str"):
            self.model.embed([*SHORT, None])  # type: ignore[list-item]
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument `trust_remote_code`"):
            sconce.Model(MINILM, trust_remote_code=True)  # type: ignore[call-arg]

    def test_options(self) -> None:
        whole = self.model.embed(SHORT)
        short = self.model.embed(SHORT, dimensions=64, force_dimensions=True)
        expected = whole[:, :64] / np.linalg.norm(whole[:, :64], axis=1, keepdims=True)
        np.testing.assert_allclose(short, expected, atol=1e-5)
        prefixed = self.model.embed(["holder"], prefix="a candle ")
        np.testing.assert_allclose(prefixed[0], whole[0], atol=1e-6)
        raw = self.model.embed(SHORT, normalize=False)
        self.assertGreater(np.linalg.norm(raw[0]), 2)

    def test_many_texts_are_in_the_order_of_the_input(self) -> None:
        vectors = self.model.embed(self.texts[:200])
        for index in (0, 57, 199):
            alone = self.model.embed([self.texts[index]])
            np.testing.assert_allclose(vectors[index], alone[0], atol=1e-2)

    def test_facts(self) -> None:
        model = self.model
        self.assertEqual((model.task, model.dimensions, model.max_length), ("embed", 384, 256))
        assert model.placement and model.numerics_class
        self.assertEqual(model.placement.device, "cpu")
        self.assertEqual(model.placement, model.plan.chosen)
        self.assertIn(str(model.placement), repr(model))
        self.assertRegex(model.numerics_class, r"^[0-9a-f]+-(exact|half)$")

    def test_constraints(self) -> None:
        model = sconce.Model(MINILM, engine="native", dtype="f32", band="exact", threads=1, offline=True)
        assert model.placement
        self.assertEqual((model.placement.engine, model.placement.dtype), ("native", "f32"))
        self.assertEqual(model.embed(SHORT).shape, (2, 384))

    def test_eight_threads_share_a_model(self) -> None:
        expected = self.model.embed(self.texts[:64])
        failures: list[BaseException] = []

        def run(offset: int) -> None:
            try:
                for at in range(offset, 56, 8):
                    vectors = self.model.embed(self.texts[at : at + 8])
                    np.testing.assert_allclose(vectors, expected[at : at + 8], atol=1e-2)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=run, args=(offset,)) for offset in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_other_threads_run_while_it_computes(self) -> None:
        stop, count = threading.Event(), 0

        def tick() -> None:
            nonlocal count
            while not stop.wait(0.005):
                count += 1

        thread = threading.Thread(target=tick)
        thread.start()
        started = time.monotonic()
        self.model.embed(self.texts[:400])
        seconds = time.monotonic() - started
        stop.set()
        thread.join()
        self.assertGreater(count, seconds / 0.005 / 10, f"in {seconds} s")

    def test_progress_is_reported(self) -> None:
        seen: list[tuple[str, int, int]] = []
        self.model.embed(self.texts[:300], progress=lambda *call: seen.append(call))
        self.assertEqual(seen[-1], ("embedding", 300, 300))
        self.assertEqual(seen, sorted(seen))
        stderr = io.StringIO()
        with redirect_stderr(stderr):
            self.model.embed(self.texts[:20], progress=True)
            self.model.embed(self.texts[:20])
        self.assertEqual(stderr.getvalue().count("20/20"), 1)

    def test_a_failing_callback_ends_the_call(self) -> None:
        with self.assertRaises(ZeroDivisionError):
            self.model.embed(self.texts, progress=lambda *_: 1 / 0)

    def test_ctrl_c_ends_a_long_call(self) -> None:
        timer, started = interrupt_after(0.3), time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            self.model.embed(self.texts * 20)
        timer.join()
        self.assertLess(time.monotonic() - started, 2)
        self.assertEqual(self.model.embed(SHORT).shape, (2, 384))

    def test_a_forked_process_is_told(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                self.model.embed(SHORT)
            except sconce.Error as error:
                os._exit(0 if error.code == "forked" else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


class OtherTasks(unittest.TestCase):
    def test_documents_are_ranked(self) -> None:
        model = sconce.Model(GOLDENS / "tiny-bert-rerank", offline=True)
        ranked = model.rerank("a query", ["one", "two", "three"])
        self.assertEqual(sorted(index for index, _ in ranked), [0, 1, 2])
        scores = [score for _, score in ranked]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(model.rerank("a query", ["one", "two", "three"], top=1), ranked[:1])

    def test_texts_are_classified(self) -> None:
        model = sconce.Model(GOLDENS / "tiny-bert-classify", offline=True)
        for labels in model.classify(["one", "two"]):
            self.assertAlmostEqual(sum(score for _, score in labels), 1, places=4)


class Errors(unittest.TestCase):
    def test_errors_have_codes_and_hints(self) -> None:
        reranker = sconce.Model(GOLDENS / "tiny-bert-rerank", offline=True)
        calls: list[tuple[Callable[[], object], str, str | None]] = [
            (lambda: sconce.Model("no/such-model", offline=True), "model_not_found", None),
            (lambda: sconce.Model(MINILM, device="tpu"), "invalid_request", None),
            (lambda: sconce.Model(MINILM, device="cuda:7", offline=True), "no_placement", None),
            (lambda: reranker.embed(["a text"]), "wrong_task", "use `rerank`"),
            # Keywords, not flags of the command.
            (lambda: reranker.embed(["a text"]), "wrong_task", "`task` overrides the task"),
            (lambda: sconce.Model(MINILM, offline=True).embed(["a"], dimensions=7), "invalid_request", "`force_dimensions`"),
            (lambda: sconce.Model(MINILM, offline=True).embed(["a"], prompt="nosuch"), "invalid_request", "`prefix=TEXT`"),
        ]
        for call, code, hint in calls:
            with self.subTest(code=code), self.assertRaises(sconce.Error) as caught:
                call()
            self.assertEqual(caught.exception.code, code, caught.exception)
            if hint:
                self.assertIn(hint, caught.exception.hint or "")

    def test_a_text_is_no_list_of_texts(self) -> None:
        model = sconce.Model(GOLDENS / "tiny-bert", offline=True)
        with self.assertRaises(TypeError):
            model.embed("a text")
        with self.assertRaises(TypeError):
            model.embed([1])  # type: ignore[list-item]


class Proofs(unittest.TestCase):
    def test_probes_run_in_child_processes_of_this_interpreter(self) -> None:
        seen: set[str] = set()
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.01):
                for path in Path("/proc").glob("[0-9]*/cmdline"):
                    try:
                        words = path.read_bytes().decode().split("\0")
                        parent = path.with_name("stat").read_text().rsplit(")", 1)[1].split()[1]
                    except OSError:
                        continue
                    if "__sconce_prove" in words and parent == str(os.getpid()):
                        seen.add(" ".join(words[:2]))

        thread = threading.Thread(target=watch)
        with TemporaryDirectory() as home:
            old, os.environ["SCONCE_HOME"] = os.environ.get("SCONCE_HOME"), home
            # Other options, hence another runtime, with this folder.
            thread.start()
            try:
                model = sconce.Model(GOLDENS / "tiny-bert", threads=3, offline=True)
            finally:
                stop.set()
                thread.join()
                if old:
                    os.environ["SCONCE_HOME"] = old
        self.assertIsNotNone(model.placement)
        package = os.path.dirname(sconce.__file__)
        self.assertEqual(seen, {f"{sys.executable} {package}"})


if __name__ == "__main__":
    unittest.main()
