"""`Model.chat` and `Model.generate`."""

import json
import threading
import time
import unittest

import sconce
from models import SMOLLM2
from test_model import interrupt_after

# The template of the model adds a system prompt of its own, with which it answers nonsense.
QUESTION = [{"role": "system", "content": ""}, {"role": "user", "content": "What is the capital of France?"}]


class Chats(unittest.TestCase):
    model: sconce.Model

    @classmethod
    def setUpClass(cls) -> None:
        cls.model = sconce.Model(SMOLLM2, latency=True, offline=True)

    def test_an_answer_arrives_in_pieces(self) -> None:
        answer = self.model.chat(QUESTION, temperature=0, max_tokens=24)
        self.assertIsNone(answer.finish_reason)
        pieces = list(answer)
        self.assertGreater(len(pieces), 3)
        self.assertIn("Paris", "".join(pieces))
        self.assertEqual(answer.finish_reason, "stop")
        self.assertGreater(answer.prompt_tokens, answer.generated_tokens)
        self.assertEqual(self.model.chat(QUESTION, temperature=0, max_tokens=24).text(), "".join(pieces))

    def test_a_text_is_continued(self) -> None:
        options = {"temperature": 0.8, "seed": 7, "max_tokens": 8}
        first, second = (self.model.generate("Once upon a time", **options).text() for _ in range(2))  # type: ignore[arg-type]
        self.assertEqual(first, second)
        stopped = self.model.generate("1 2 3 4 5", temperature=0, max_tokens=20, stop=["8"])
        self.assertNotIn("8", stopped.text())

    def test_json_follows_a_schema(self) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        text = self.model.chat("A number, please.", json_schema=schema, temperature=0, max_tokens=60).text()
        self.assertIsInstance(json.loads(text)["n"], int)

    def test_invalid_options_are_errors(self) -> None:
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument `temprature`"):
            self.model.chat(QUESTION, temprature=0.5)  # type: ignore[call-arg]
        self.assertNotIn("a", self.model.chat(QUESTION, stop="a", temperature=0, max_tokens=20).text())
        for options in ({"temperature": -1}, {"template": "no such"}):
            with self.subTest(options), self.assertRaises(sconce.Error) as caught:
                self.model.chat(QUESTION, **options)
            self.assertEqual(caught.exception.code, "invalid_request")
        with self.assertRaises(sconce.Error) as caught:
            self.model.embed(["a text"])
        self.assertEqual(caught.exception.code, "wrong_task")

    def test_ctrl_c_and_close_end_an_answer(self) -> None:
        answer = self.model.generate("Once", ignore_eos=True, max_tokens=2000)
        timer, started = interrupt_after(0.5), time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            for _ in answer:
                pass
        timer.join()
        self.assertLess(time.monotonic() - started, 2)
        self.assertEqual(list(answer), [], "it was cancelled")
        other = self.model.generate("Once", ignore_eos=True, max_tokens=2000)
        next(other)
        other.close()
        self.assertEqual(list(other), [])

    def test_threads_generate_together(self) -> None:
        texts: list[str] = []

        def run() -> None:
            texts.append(self.model.chat(QUESTION, temperature=0, max_tokens=16).text())

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(texts), len(set(texts))), (8, 1))


if __name__ == "__main__":
    unittest.main()
