"""Scores triples of texts with the real pair classifier, by onnxruntime for Python.

    python scripts/goldens/pairs.py "$(scripts/parts pairs)"

Writes crates/testkit/goldens/pairs/reference.json: for each text an entailed and a contradicting one,
with the two scores of both pairs, each pair in its own batch.
"""

import common  # before the libraries, whose versions it checks

import sys
from pathlib import Path

import numpy
import onnxruntime
from tokenizers import Tokenizer

from layout import write_json

# Premise, entailment, contradiction.
THREES = [
    ("A man is playing a guitar on stage.", "A man is making music.", "Nobody is playing any instrument."),
    ("The cat sleeps on the sofa.", "An animal is sleeping.", "The cat is running outside."),
    ("All of the shops are closed on Sunday.", "No shop is open on Sunday.", "Some shops are open on Sunday."),
    ("Two children are swimming in the lake.", "Children are in the water.", "The children are asleep in bed."),
    ("The parcel arrived on Monday.", "The parcel has arrived.", "The parcel was never delivered."),
    ("She bought a red car.", "She owns a car.", "She has never bought a car."),
    ("Send an email to Bob about the meeting.", "Email sending", "Delete the database"),
    ("The bridge was closed for repairs all summer.", "The bridge could not be used during the summer.",
     "The bridge stayed open all summer."),
    ("Three musicians played in the square until midnight.", "There was music in the square at night.",
     "The square was silent all evening."),
    ("The train to the coast leaves every hour.", "Trains go to the coast.", "No train goes to the coast."),
    ("A woman in a blue coat is feeding the pigeons.", "A woman is giving food to birds.",
     "A man is chasing the pigeons away."),
    ("The committee rejected the plan because it cost too much.", "The plan was not accepted.",
     "The committee approved the plan."),
    ("Every pupil passed the examination.", "No pupil failed the examination.",
     "Half of the pupils failed the examination."),
    ("The old mill burned down in 1923.", "The mill was destroyed by fire.",
     "The mill still stands and has never been damaged."),
    ("He forgot his keys at the office and had to walk back.", "He did not have his keys with him.",
     "He had his keys in his pocket the whole time."),
    ("The lake freezes over every winter.", "In winter there is ice on the lake.", "The lake never freezes."),
    ("She speaks four languages fluently.", "She can speak more than one language.", "She speaks only one language."),
    ("The shop sells bread, cheese and fresh fruit.", "You can buy cheese in the shop.",
     "The shop sells nothing but shoes."),
    ("Rain fell without a pause for three days.", "It rained for several days.",
     "The weather was dry for the whole week."),
]


VERSION = "1.31.1"  # that of scripts/parts


def main() -> None:
    if onnxruntime.__version__ != VERSION:
        sys.exit(f"The scores are made with onnxruntime {VERSION}, but {onnxruntime.__version__} is imported.")
    folder = Path(sys.argv[1])
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))  # pads to 256, as the graph takes them

    def scores(first: str, second: str) -> list[float]:
        encoded = tokenizer.encode(first, second)
        fed = {
            "input_ids": encoded.ids,
            "attention_mask": encoded.attention_mask,
            "token_type_ids": encoded.type_ids,
        }
        given = session.run(["logits"], {name: numpy.array([ids]) for name, ids in fed.items()})[0][0]
        return [float(score) for score in given]

    threes = [
        {"text": text, "entailed": entailed, "contradicted": contradicted,
         "scores": [scores(text, entailed), scores(text, contradicted)]}
        for text, entailed, contradicted in THREES
    ]
    folder = common.GOLDENS / "pairs"
    folder.mkdir(exist_ok=True)
    write_json(folder / "reference.json", {"onnxruntime": onnxruntime.__version__, "threes": threes})
    for place in range(2):
        apart = [three["scores"][0][place] - three["scores"][1][place] for three in threes]
        better = sum(difference > 0 for difference in apart)
        print(f"score {place}: entailed above contradicted by {numpy.mean(apart):.2f} on average, {better} of {len(apart)}")


if __name__ == "__main__":
    main()
