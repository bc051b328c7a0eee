"""Questions about everything, to train drafts on: templates filled with words of WordNet, and prose to work on.

    python scripts/open_questions.py WORDNET questions.jsonl [--number 12000] [--seed 7]

WORDNET is a folder with WordNet 3.0's files (Debian: wordnet-base, below /usr/share/wordnet). Prose is the
interpreter's own: what its library's modules, classes and functions say about themselves. The file is for `lcspec draft
eagle --text`, which has a model answer the questions and trains on the answers. They are not about what benchmarks ask.
"""

from __future__ import annotations

import ast
import collections
import json
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

# WordNet's files of nouns that a template's word is taken from: 4 acts, 5 animals, 6 things made, 7 attributes, 8 the
# body, 9 thoughts, 10 communication, 11 events, 12 feelings, 13 food, 17 and 19 nature, 18 people, 20 plants, 22
# processes, 23 quantities, 26 states, 27 substances; `inst`: named people, `place`: named places.
WORDS: dict[str, tuple[int | str, ...]] = {
    "person": ("inst",),
    "place": ("place",),
    "role": (18,),
    "thing": (6, 6, 13, 20, 5, 27),
    "idea": (4, 7, 9, 9, 10, 12, 22, 26, 19, 11),
    "science": (19, 22, 22, 27, 17, 8, 23),
    "food": (13,),
    "living": (5, 20),
    "edible": (13, 20, 27),
    "event": (11, 4),
}
TOLD, EXPLAINED = (5, 9, 13, 18, 19, 22, "inst", "place", 6), (9, 19, 22, "inst", "place", 6)
# How often, and what: {word}, {a word} with its article, {3-40} a number, {x|y} one of them, or a name in `Filler`.
TEMPLATES = (
    (3, "What is {idea}?"),
    (2, "What is {a thing} used for?"),
    (3, "Explain {science} in simple terms."),
    (2, "How does {science} work, and why does it matter?"),
    (2, "What is the difference between {a thing} and {a thing}?"),
    (3, "Write a short story about {a role} and {a thing}."),
    (2, "Write a poem about {idea}."),
    (2, "Write a blog post about {idea} in {place}."),
    (2, "Write an email to {a role} about {a thing}."),
    (1, "Draft a polite letter to my landlord about {thing}."),
    (2, "Write a product description for {a thing}."),
    (1, "Write a review of a film about {idea}."),
    (1, "Write the opening paragraph of a novel set in {place}."),
    (2, "Give me five tips for {a role} who is new to {idea}."),
    (2, "How can I get better at {idea}?"),
    (2, "What are the advantages and disadvantages of {idea}?"),
    (2, "Describe the history of {place}."),
    (3, "Who was {person}?"),
    (2, "What is {person} best known for?"),
    (2, "Tell me about {place}."),
    (2, "What would have happened if {person} had never lived?"),
    (2, "What if people had never invented {a thing}?"),
    (2, "Imagine you are {a role}. Describe your day."),
    (2, "You are {a role}. How would you explain {idea} to a child?"),
    (1, "Act as {person} and introduce yourself to an audience of today."),
    (1, "Write a dialogue between {a role} and {a role} about {idea}."),
    (2, "About how many {thing}s are there in {place}? Estimate step by step."),
    (1, "How much does {a thing} weigh? Explain how you got there."),
    (2, "Why do people care about {idea}?"),
    (2, "How are {idea} and {idea} related?"),
    (2, "Discuss the role of {idea} in modern society."),
    (2, "Compare {place} and {place}."),
    (1, "Plan a trip of three days to {place}."),
    (2, "List ten facts about {thing}."),
    (1, "Suggest names for a shop that sells {thing}."),
    (1, "Give me a recipe with {food} and {food}."),
    (2, "What should I consider before buying {a thing}?"),
    (1, "How do I take care of {a living}?"),
    (1, "Is {edible} healthy? Give reasons."),
    (2, "Summarize what is known about {science}."),
    (1, "What questions should I ask {a role}?"),
    (1, "Make a table of the kinds of {thing}."),
    (2, "How would you solve a conflict between {a role} and {a role}?"),
    (1, "Write a speech on {idea} for {a role}."),
    (1, "Where is {place} and what is it known for?"),
    (1, "When did {event} begin and how did it change over time?"),
    (2, "Write a Python function that works with {a thing} and {a thing}."),
    (1, "Write a {C++|JavaScript|Java|SQL|bash} program that counts {thing}s in a file."),
    (1, "Correct this sentence and explain the mistakes: {broken}"),
    (1, 'Is the following sentence positive, negative or neutral? "{sentence}"'),
    (1, "Continue the story: {sentence}."),
    (1, 'Rewrite this in a formal style: "{sentence}"'),
    (1, "Translate to {German|French|Spanish|Italian}: {sentence}"),
    (1, 'Explain what this means: "{sentence}"'),
    (
        1,
        "If {a role} has {3-40} {thing}s and buys {2-30} more for ${2-90} each, how much is spent and how many are "
        "there?",
    ),
    (1, "Solve: {2-9}x + {1-30} = {31-99}. What is x?"),
    (
        1,
        "A train travels {40-300} miles in {2-9} hours. What is its average speed, and how far would it go in {2-9} "
        "hours more?",
    ),
    (2, "{which|what|who} {is the biggest|is the oldest|made the first|is famous for} {thing} {where}"),
    (2, "{who|when was|where is|why is} {somebody} {famous|important|born|known today}"),
    (2, "Summarize:\n{prose}"),
    (2, "Summarize the following text in two sentences.\n\n{eight}"),
    (3, "{explained}"),
    (1, "Extract all names and places from this text as a list.\n\n{six}"),
    (1, "What is this text about?\n\n{prose}"),
)
LONGEST = 1200  # characters of a question
FIELD = re.compile(r"\{(?:(?P<low>\d+)-(?P<high>\d+)|(?P<article>a )?(?P<name>\w+)|(?P<choices>[^{}]+))\}")


class Noun(NamedTuple):
    """A word and what it means."""

    word: str
    meaning: str


class WordNet:
    """Nouns by their file, those of the usual words, and sentences that show how words are used."""

    def __init__(self, folder: Path) -> None:
        used = collections.Counter[str]()
        for line in (folder / "cntlist.rev").read_text().splitlines():
            key, _, count = line.split()
            used[key.split("%")[0]] += int(count)
        self.nouns = collections.defaultdict[int | str, list[Noun]](list)
        self.sentences: list[str] = []
        by_file = collections.defaultdict[int | str, list[str]](list)
        for line in (folder / "data.noun").read_text().splitlines():
            if line.startswith(" "):  # the licence
                continue
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            file, word, named = int(fields[1]), fields[4].replace("_", " "), "@i" in fields
            parts = [part.strip() for part in re.split(r";\s*", gloss.strip()) if not part.strip().startswith('"')]
            kind: int | str = {18: "inst", 15: "place"}.get(file, file) if named else file
            self.nouns[kind].append(Noun(word, parts[0] if parts else ""))
            by_file[kind] += re.findall(r'"([^"]{15,120})"', gloss)
        self.sentences += [sentence for found in by_file.values() for sentence in found]
        for part in ("verb", "adj"):
            for line in (folder / f"data.{part}").read_text().splitlines():
                self.sentences += re.findall(r'"([^"]{20,120})"', line)
        self.usual: dict[int | str, list[str]] = {}
        for kind, nouns in self.nouns.items():
            words = [noun.word for noun in nouns]
            self.usual[kind] = [word for word in words if used[word.replace(" ", "_").lower()]] or words


class Filler:
    """Fills templates; the same seed gives the same questions."""

    def __init__(self, wordnet: WordNet, prose: list[str], seed: int) -> None:
        self.wordnet, self.prose, self.rng = wordnet, prose, random.Random(seed)
        self.special: dict[str, Callable[[], str]] = {
            "sentence": lambda: self.rng.choice(wordnet.sentences),
            "broken": lambda: self.rng.choice(wordnet.sentences).replace(" the ", " ", 1),
            "somebody": lambda: self.word(self.rng.choice(["person", "place"])),
            "where": lambda: self.rng.choice(["in the world", "in " + self.word("place"), ""]),
            "prose": lambda: self.rng.choice(prose),
            "eight": lambda: _told(self.some(TOLD, 8)),
            "six": lambda: _told(self.some(TOLD, 6)),
            "explained": self.explained,
        }

    def word(self, name: str) -> str:
        """A usual word of a group in WORDS."""
        return self.rng.choice(self.wordnet.usual[self.rng.choice(WORDS[name])])

    def some(self, files: tuple[int | str, ...], n: int) -> list[Noun]:
        """So many nouns of one of the files."""
        return self.rng.sample(self.wordnet.nouns[self.rng.choice(files)], n)

    def explained(self) -> str:
        """A text and a question that it answers."""
        nouns = self.some(EXPLAINED, 6)
        return f"{_told(nouns)}\n\nUsing the text above, answer this: what is {self.rng.choice(nouns).word}?"

    def field(self, match: re.Match[str]) -> str:
        """What stands for a field of a template."""
        low, high, article, name, choices = match.group("low", "high", "article", "name", "choices")
        if low:
            return str(self.rng.randint(int(low), int(high)))
        if choices:
            return self.rng.choice(choices.split("|"))
        text = self.special[name]() if name in self.special else self.word(name)
        return f"{'an' if text[:1].lower() in 'aeiou' else 'a'} {text}" if article else text

    def questions(self, number: int) -> list[str]:
        """So many different ones, shuffled."""
        weights, found = [weight for weight, _ in TEMPLATES], set[str]()
        while len(found) < number:
            [(_, template)] = self.rng.choices(TEMPLATES, weights)
            text = FIELD.sub(self.field, template).strip()
            if len(text) < LONGEST:
                found.add(text)
        out = sorted(found)
        self.rng.shuffle(out)
        return out


def _told(nouns: list[Noun]) -> str:
    return " ".join(f"{noun.word.capitalize()}: {noun.meaning}." for noun in nouns)


def library_prose() -> Iterator[str]:
    """What the interpreter's library says about itself, in pieces of some sentences."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "test" in path.parts or "site-packages" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text and 300 < len(text) < 1100 and ">>>" not in text:
                    yield text


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.argument("wordnet", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--number", default=12000, help="How many questions.")
@click.option("--seed", default=7)
def main(wordnet: Path, out: Path, number: int, seed: int) -> None:
    made = Filler(WordNet(wordnet), list(library_prose()), seed).questions(number)
    rows = (json.dumps({"messages": [{"role": "user", "content": text}]}) for text in made)
    out.write_text("\n".join(rows) + "\n", encoding="utf-8")
    click.echo(f"{len(made)} questions in {out}")


if __name__ == "__main__":
    main()
