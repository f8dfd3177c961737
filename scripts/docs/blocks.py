"""Reads the code blocks of Markdown pages, and the comments that say how they are run.

A comment stands on the line before its block:

    <!-- not run here: REASON -->    the block is not run; the reason is listed in docs/reference/not-run.md
    <!-- file: NAME -->              the block is the content of a file that later blocks use

A comment that begins with `<!-- run first` has shell commands that prepare a page and that readers do not need.
"""

import dataclasses
import pathlib
import re

FENCE = re.compile(r"^( *)```(\S*)\s*$")
NOT_RUN = re.compile(r"^ *<!-- not run here: (.+) -->$")
FILE = re.compile(r"^ *<!-- file: (\S+) -->$")
RUN_FIRST = re.compile(r"^ *<!-- run first$")


@dataclasses.dataclass
class Block:
    """A code block, or commands that prepare a page (language `setup`)."""

    line: int
    language: str
    text: str
    not_run: str | None = None
    file: str | None = None


def read(page: pathlib.Path) -> list[Block]:
    """The blocks of a page in order."""
    blocks, lines = [], page.read_text().splitlines()
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if RUN_FIRST.match(lines[at]):
            end = next(i for i in range(at, len(lines)) if lines[i].strip() == "-->")
            blocks.append(Block(at + 1, "setup", "\n".join(lines[at + 1 : end]) + "\n"))
            at = end
        elif fence:
            indent, language = len(fence[1]), fence[2]
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            text = "".join(line[indent:] + "\n" for line in lines[at + 1 : end])
            before = lines[at - 1] if at > 0 else ""
            not_run, file = NOT_RUN.match(before), FILE.match(before)
            block = Block(at + 1, language.split(",")[0], text)
            block.not_run, block.file = not_run and not_run[1], file and file[1]
            blocks.append(block)
            at = end
        at += 1
    return blocks


def pages(root: pathlib.Path) -> list[pathlib.Path]:
    """The README and the pages of the book."""
    return [root / "README.md", *sorted(path for path in (root / "docs").rglob("*.md") if path.name != "SUMMARY.md")]
