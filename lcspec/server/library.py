"""Models that are loaded on demand: those of a folder, or all of this machine, each with the draft that fits it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lcspec.config import ModelOptions
from lcspec.errors import LcspecError, ModelLoadError, UsageError
from lcspec.loading import model_options
from lcspec.model_choice import Pairing, paired
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET
from lcspec.modelfiles.library import LibraryModel, describe, last_model, models
from lcspec.modelfiles.memory import Memory, check_memory, machine_memory
from lcspec.modelfiles.pairing import DIFFUSION, HEADS, SPEECH
from lcspec.modelfiles.places import Place, here, scan
from lcspec.server.hosting import start_engine
from lcspec.server.model_entry import Entry, Progress
from lcspec.server.service import Service
from lcspec.server.settings import ServerSettings

# A search through huge folders is given up after so long, seconds.
SEARCH_SECONDS = 20.0
# Options that belong to one model; the others get what they have themselves.
OWN = ("draft", "heads", "store", "lora")


class Library:
    """Finds models and loads them with the options of `lcspec serve`."""

    def __init__(
        self, o: Mapping[str, Any], settings: ServerSettings, folders: Sequence[Path] = (), first: Entry | None = None
    ) -> None:
        """With `folders` only what lies in them is served; `first` is a model that the user named, with its options.

        Raises:
            UsageError: a folder is not there, or options for one model are given for all.
        """
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"{folder} is no folder: give --models-dir one with GGUF files")
        if first is None:
            for name in (*OWN, "chat_template", "chat_template_file"):
                if o.get(name):
                    option = name.replace("_", "-")
                    raise UsageError(f"--{option} belongs to one model: name that one, or leave --{option} out")
        self.o, self.settings, self.folders, self.first = dict(o), settings, tuple(folders), first

    # ------------------------------------------------------------ finding

    def entries(self) -> list[Entry]:
        """The models there are now, the one that the user named first."""
        end = time.monotonic() + SEARCH_SECONDS

        def late() -> bool:
            return time.monotonic() > end

        if self.folders:
            found: Iterable[LibraryModel] = map(describe, scan([Place("folder", f) for f in self.folders], late))
        else:
            found = models(stop=late, near=here())
        listed: list[Entry] = [] if self.first is None else [self.first]
        taken = {name for entry in listed for name in entry.names[:1]}
        seen = {entry.path.resolve() for entry in listed}
        for model in found:
            if not serves(model) or model.path.resolve() in seen:
                continue
            names = names_of(model)
            if names[0] in taken:  # the same name in two folders
                names = (str(model.path), *names)
            taken.add(names[0])
            seen.add(model.path.resolve())
            listed.append(Entry(names, model.path, model))
        return listed

    # ------------------------------------------------------------ loading

    def load(self, entry: Entry, others: Iterable[Entry], progress: Progress) -> Service:
        """The model, warm.

        Raises:
            LcspecError: it cannot be loaded.
        """
        pairing, options = self._planned(entry)
        check_memory(options, pairing.pair.draft, self._left(others))

        def report(what: str, fraction: float) -> None:
            progress(what, fraction)

        worker = start_engine(self.o, options, pairing.pair.draft, report)
        try:
            settings = replace(self.settings, models=entry.names)
            if entry is not self.first:
                settings = replace(settings, chat_template=None)
            service = Service(worker, settings)
            service.warm_up()
        except BaseException:
            worker.close(timeout=60)
            raise
        return service

    def fits(self, entry: Entry, others: Iterable[Entry]) -> bool:
        """Whether there is memory for it beside `others`; what else is wrong with it is found out when it is loaded."""
        others = list(others)
        if not others:
            return True
        try:
            pairing, options = self._planned(entry)
            check_memory(options, pairing.pair.draft, self._left(others))
        except ModelLoadError:
            return False
        except LcspecError:
            return True
        return True

    def _planned(self, entry: Entry) -> tuple[Pairing, ModelOptions]:
        o = self.o | {"model": entry.path}
        if entry is not self.first:
            o |= {"draft": (), "heads": None, "store": None, "lora": ()}
        pairing = paired(o)
        options = model_options(pairing.pair.target, o, exact=o["exact"], slots=o["slots"], batch=o["batch"])
        return pairing, options

    def _left(self, others: Iterable[Entry]) -> Memory | None:
        """What the machine has, without what the loaded models were mapped from."""
        memory = machine_memory()
        if memory is None:
            return None
        taken = 0
        for other in others:
            if other.service is not None:
                taken += other.service.header.file_size
                taken += sum(path.stat().st_size for path in other.service.draft.models if path.exists())
        return Memory(max(0, memory.total - taken), memory.free)


def serves(model: LibraryModel) -> bool:
    """Whether a file of the library is a model that can answer anything."""
    return model.usable and model.architecture not in DIFFUSION | SPEECH | HEADS.keys()


def names_of(model: LibraryModel) -> tuple[str, ...]:
    """What a model may be called, its own name first: what `lcspec models` shows, and the file's name."""
    label = model.label.removesuffix(".gguf")
    names = [label, model.label]
    if ":" in label:
        names.append(label.removesuffix(":latest"))
    else:
        names += [model.path.name.removesuffix(".gguf"), model.path.name]
    return tuple(dict.fromkeys(names))


def usual_of(entries: Sequence[Entry]) -> str | None:
    """The model for requests that name none: the one used last in the chat, else the only one of the user's, else the
    bundled one."""
    last = last_model()
    if last is not None:
        for entry in entries:
            if entry.path.resolve() == last.model.resolve():
                return entry.name
    bundled = {DEMO_TARGET: 0, DEMO_DRAFT: 1}
    own = [entry for entry in entries if entry.path.name not in bundled]
    if len(own) == 1:
        return own[0].name
    if not own and entries:
        return min(entries, key=lambda entry: bundled[entry.path.name]).name
    demo = [entry for entry in entries if entry.path.name == DEMO_TARGET]
    return demo[0].name if demo else None
