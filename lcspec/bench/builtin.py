"""Prompts to benchmark with when the user names none: a few of each kind of text, written for this purpose."""

from __future__ import annotations

from lcspec.bench.prompts import Prompt

DIALOGUE = (
    "My neighbour's dog barks every morning at five. I like the dog and I like the neighbour. How do I bring it up "
    "without starting a quarrel?",
    "I moved to a small town last month and know nobody here. What are three easy ways to meet people?",
    "Explain to a ten year old why the moon changes its shape during the month.",
)

WORD_PROBLEMS = (
    "A baker fills 14 trays with 12 rolls each. Before noon 95 rolls are sold, and in the afternoon half of what is "
    "left. How many rolls remain? Explain step by step.",
    "Mira cycles 18 kilometres in 45 minutes and then walks 4 kilometres in an hour. What is her average speed over "
    "the whole trip? Show each step.",
    "A tank holds 240 litres. One pipe fills it in 8 hours, another empties it in 12 hours. With both open, how long "
    "does it take to fill the empty tank? Show your work.",
)

CODE = (
    "Write a Python function `merge_intervals(intervals)` that merges overlapping (start, end) pairs and returns them "
    "sorted. Add a docstring and three small tests.",
    "Write a Python class `LeastRecentlyUsed` with `get` and `put` in constant time and a fixed capacity.",
    '"""Reading and writing of settings."""\n\nimport json\nfrom pathlib import Path\n\n\n'
    "def load(path: Path) -> dict:\n"
    '    """Read settings from a file."""\n    with path.open() as file:\n        return json.load(file)\n\n\n'
    "def save(path: Path, settings: dict) -> None:\n",
)

INVENTORY = '''"""A small inventory."""

from dataclasses import dataclass, field


@dataclass
class Item:
    """Something on a shelf."""

    name: str
    price: float
    amount: int = 0
    tags: list[str] = field(default_factory=list)


class Inventory:
    """Items by name."""

    def __init__(self):
        self.items = {}

    def add(self, name, price, amount=1):
        """Put something on the shelf."""
        if name in self.items:
            self.items[name].amount += amount
        else:
            self.items[name] = Item(name, price, amount)

    def remove(self, name, amount=1):
        """Take something from the shelf."""
        if name not in self.items:
            raise KeyError(name)
        item = self.items[name]
        if item.amount < amount:
            raise ValueError(f"only {item.amount} of {name} left")
        item.amount -= amount
        if item.amount == 0:
            del self.items[name]

    def value(self):
        """What everything on the shelf is worth."""
        total = 0.0
        for item in self.items.values():
            total += item.price * item.amount
        return total

    def cheapest(self):
        """The item with the lowest price."""
        best = None
        for item in self.items.values():
            if best is None or item.price < best.price:
                best = item
        return best

    def report(self):
        """One line per item."""
        lines = []
        for item in self.items.values():
            lines.append(f"{item.name}: {item.amount} at {item.price}")
        return "\\n".join(lines)
'''

LOG_PARSER = """import sys


def parse_line(line):
    parts = line.strip().split(" ", 3)
    if len(parts) < 4:
        return None
    date, time, level, message = parts
    return {"date": date, "time": time, "level": level, "message": message}


def count_levels(path):
    counts = {}
    file = open(path)
    for line in file:
        entry = parse_line(line)
        if entry is None:
            continue
        level = entry["level"]
        if level not in counts:
            counts[level] = 0
        counts[level] += 1
    file.close()
    return counts


def first_error(path):
    file = open(path)
    for line in file:
        entry = parse_line(line)
        if entry is None:
            continue
        if entry["level"] == "ERROR":
            file.close()
            return entry
    file.close()
    return None


def main():
    counts = count_levels(sys.argv[1])
    for level in sorted(counts):
        print(level, counts[level])
    entry = first_error(sys.argv[1])
    if entry is not None:
        print("first error:", entry["message"])


if __name__ == "__main__":
    main()
"""

CODE_EDITING = (
    f"Here is a file:\n\n```python\n{INVENTORY}```\n\nAdd type hints to every method, change nothing else, and write "
    "out the whole file.\n\n```python\n",
    f"Rename `Inventory` to `Stock` and `amount` to `count` everywhere in this file, and write out the whole "
    f"file.\n\n```python\n{INVENTORY}```\n\nThe whole file:\n\n```python\n",
    f"Here is a script:\n\n```python\n{LOG_PARSER}```\n\nUse `with` for every file that is opened, and write out the "
    "whole script.\n\n```python\n",
)

REPETITIVE = (
    "Continue the table.\n\n"
    + "\n".join(f"| row {i} | width {i * 2} | height {i * 3} | status ready |" for i in range(1, 9))
    + "\n",
    "Ten green bottles standing on the wall, ten green bottles standing on the wall. If one green bottle should fall, "
    "there will be nine green bottles standing on the wall.\nNine green bottles standing on the wall, nine green "
    "bottles standing on the wall. If one green bottle should fall, there will be",
    "INSERT INTO stations (id, name, zone) VALUES (1, 'North Gate', 'A');\n"
    "INSERT INTO stations (id, name, zone) VALUES (2, 'Mill Bridge', 'A');\n"
    "INSERT INTO stations (id, name, zone) VALUES (3, 'Old Harbour', 'B');\n",
)

EXTRACTION = (
    "Meeting notes: Anna Berg (anna.berg@example.org) presented the budget on 3 March. Luis Ortega "
    "(l.ortega@example.org) will send the contract by 10 March. Priya Nair (priya@example.org) asked for a second "
    "venue; the decision is due on 17 March.\n\nList every person with e-mail address, task and date as a JSON array.",
    "Order 4417: two lamps at 39.50 each, one desk at 210.00, four chairs at 64.25 each; delivered to 12 Quay Street "
    "on 8 May; paid by card.\n\nGive the order as a table with article, number, price and sum, then the total.",
    "The river Alder rises at 1 240 m near Holm, passes Karlow after 35 km and Breno after 81 km, and reaches the sea "
    "at Ostia after 132 km. Karlow has 12 000 inhabitants, Breno 48 000, Ostia 90 000.\n\nCopy out every place with "
    "its distance and its inhabitants, one a line.",
)

KINDS = {
    "dialogue": DIALOGUE,
    "word problems": WORD_PROBLEMS,
    "code": CODE,
    "code editing": CODE_EDITING,
    "repetitive": REPETITIVE,
    "extraction": EXTRACTION,
}


def builtin_prompts() -> list[Prompt]:
    """The built-in set, category by category."""
    return [
        Prompt(f"{kind.replace(' ', '-')}-{i}", kind, text, "built-in")
        for kind, texts in KINDS.items()
        for i, text in enumerate(texts, start=1)
    ]
