"""Models from the Hugging Face hub, through huggingface_hub: which file of a repository, resumed and checked downloads.

    wanted = parse_name("owner/repo:Q4_K_M")
    hub = Hub()
    path = hub.download(hub.choose(wanted))

Files land in the hub's own cache, where other programs find them as well. HF_ENDPOINT, HF_TOKEN and the rest of its
variables hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from lcspec.errors import DownloadError, UsageError
from lcspec.modelfiles.gguf_header import format_size
from lcspec.modelfiles.places import hub_cache

CHUNK = 1 << 20
# Taken in this order where the user names no quantization; what most people take, then what is nearest to it.
PREFERRED = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q4_1", "Q5_K_M", "Q6_K", "Q8_0")
_NAME = re.compile(r"(?:[a-z]+://[^/]+/)?(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<what>[^:]+))?/?")
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_PROJECTOR = re.compile(r"(^|[-_./])mmproj([-_.]|$)", re.IGNORECASE)
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", re.IGNORECASE)
_DRAFT_SHARE = 0.25  # a draft worth downloading has at most this share of the target's parameters


@dataclass(frozen=True)
class Name:
    """What the user asked for: a repository, and a file or quantization in it ("" = choose)."""

    repo: str
    what: str = ""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository; `sha256` is None for small files, of which the hub keeps none."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class RemoteModel:
    """A GGUF in a repository: its parts in order (one, unless it is split), at one revision."""

    repo: str
    revision: str
    parts: tuple[RemoteFile, ...]

    @property
    def name(self) -> str:
        """The (first) file's name."""
        return self.parts[0].name

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)


def parse_name(text: str) -> Name:
    """Read `owner/repo[:file or quantization]`; a repository's address works as well.

    Raises:
        UsageError: it is neither.
    """
    match = _NAME.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no model to pull: give smollm2, or owner/repo, or owner/repo:Q4_K_M")
    return Name(match["repo"], match["what"] or "")


class Hub:
    """The hub, or what HF_ENDPOINT names."""

    def __init__(self, endpoint: str | None = None, cache: Path | None = None) -> None:
        """`cache`: where downloads go; None = the hub's own cache."""
        from huggingface_hub import HfApi, constants

        self.endpoint = endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
        self.cache = cache or hub_cache()
        self._api = HfApi(endpoint=self.endpoint)

    def models(self, repo: str) -> list[RemoteModel]:
        """The models of a repository, by name; projectors (mmproj) are left out.

        Raises:
            DownloadError: it does not exist, may not be read, or the hub cannot be reached.
        """
        with _told(repo):
            info = self._api.model_info(repo, files_metadata=True)
        parts: dict[str, list[RemoteFile]] = {}
        for file in info.siblings or []:
            name = file.rfilename
            if name.lower().endswith(".gguf") and not _PROJECTOR.search(name):
                digest = file.lfs.sha256 if file.lfs is not None else None
                parts.setdefault(_PART.sub("", name), []).append(RemoteFile(name, file.size or 0, digest))
        return [
            RemoteModel(repo, info.sha or "main", tuple(sorted(files, key=lambda f: f.name)))
            for _, files in sorted(parts.items())
        ]

    def choose(self, wanted: Name) -> RemoteModel:
        """The model that a name means.

        Raises:
            DownloadError: there is none, or several and no way to choose.
        """
        return choose(wanted, self.models(wanted.repo))

    def find_draft(self, target: RemoteModel) -> RemoteModel | None:
        """The smallest model of the same owner and family ("Qwen2.5-0.5B-..." for "Qwen2.5-7B-...") that is small
        enough to draft for `target`; None if there is none, or the hub does not say."""
        owner, _, name = target.repo.partition("/")
        size = _SIZE.search(name)
        if size is None:
            return None
        family = name[: size.start()].rstrip("-_.")
        found: dict[float, str] = {}
        with contextlib.suppress(DownloadError):
            with _told(target.repo):
                listed = [info.id for info in self._api.list_models(author=owner, search=family or name, limit=200)]
            for repo in listed:
                other = repo.partition("/")[2]
                theirs = _SIZE.search(other)
                if theirs is not None and _SIZE.sub("#", other, count=1) == _SIZE.sub("#", name, count=1):
                    found[_parameters(theirs)] = repo
            for n in sorted(found):
                if n <= _DRAFT_SHARE * _parameters(size):
                    with contextlib.suppress(DownloadError):
                        return self.choose(Name(found[n]))
        return None

    def download(self, model: RemoteModel, say: Callable[[str], object] = lambda line: None) -> Path:
        """Download what is missing of a model and check it; the path of its first part.

        An interrupted download goes on where it stopped. `say` is told what is done beside downloading.

        Raises:
            DownloadError: the hub cannot be reached, the disk is full, or a file is not what it should be.
        """
        from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

        paths = []
        for part in model.parts:
            known = try_to_load_from_cache(model.repo, part.name, cache_dir=self.cache, revision=model.revision)
            if isinstance(known, str) and os.path.exists(known):
                paths.append(Path(known))
                continue
            self._check_room(part)
            with _told(model.repo):
                if part.sha256 is not None and part.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
                    self._fetch(model, part, part.sha256, say)
                # what is there already it only gives its name
                found = hf_hub_download(
                    model.repo, part.name, revision=model.revision, cache_dir=self.cache, endpoint=self.endpoint
                )
            paths.append(Path(found))
        return paths[0]

    def _fetch(self, model: RemoteModel, part: RemoteFile, sha256: str, say: Callable[[str], object]) -> None:
        """Put a checked file where the cache keeps contents, by their SHA-256.

        huggingface_hub throws away what came of an interrupted download; here it is kept, and the rest asked for.
        """
        from huggingface_hub import get_token, hf_hub_url
        from huggingface_hub.file_download import http_get, repo_folder_name

        blob = self.cache / repo_folder_name(repo_id=model.repo, repo_type="model") / "blobs" / sha256
        if blob.exists():
            return
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = blob.with_name(sha256 + ".partial")
        with partial.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DownloadError(f"{part.name} is being downloaded by another program: wait for it") from None
            url = hf_hub_url(model.repo, part.name, revision=model.revision, endpoint=self.endpoint)
            if file.tell() > part.size:
                file.truncate(0)
            came, token = file.seek(0, os.SEEK_END), get_token()
            http_get(
                url,
                file,
                resume_size=came,
                headers={"authorization": f"Bearer {token}"} if token else {},
                expected_size=part.size,
                displayed_filename=os.path.basename(part.name),
            )
            file.flush()
            os.fsync(file.fileno())
            say(f"checking {part.name} ...")
            digest = _sha256(partial)
            if digest != sha256:
                partial.unlink()
                raise DownloadError(
                    f"{part.name} did not arrive whole (its SHA-256 is {digest[:16]}..., and the hub says "
                    f"{sha256[:16]}...): it was removed; try again"
                )
            partial.replace(blob)

    def _check_room(self, part: RemoteFile) -> None:
        folder = self.cache
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if part.size > free:
            raise DownloadError(
                f"{part.name} has {format_size(part.size)} and {self.cache} has room for {format_size(free)}: make "
                "some, or set HF_HUB_CACHE to a folder on another disk"
            )


def choose(wanted: Name, models: Sequence[RemoteModel]) -> RemoteModel:
    """The model of a repository that a name means.

    Raises:
        DownloadError: there is none, or several and no way to choose.
    """
    if not models:
        raise DownloadError(f"{wanted.repo} has no GGUF files; look for a repository whose name ends in -GGUF")
    listed = ", ".join(f"{m.name} ({format_size(m.size)})" for m in models)
    what = wanted.what
    if what.lower().endswith(".gguf"):
        for model in models:
            if any(what in (part.name, os.path.basename(part.name)) for part in model.parts):
                return model
        raise DownloadError(f"{wanted.repo} has no {what}; it has {listed}")
    if what:
        found = _of_quantization(models, what)
        if found is None:
            raise DownloadError(f"{wanted.repo} has no {what}; it has {listed}")
        return found
    if len(models) == 1:
        return models[0]
    for quantization in PREFERRED:
        found = _of_quantization(models, quantization)
        if found is not None:
            return found
    raise DownloadError(f"{wanted.repo} has several models; name one as {wanted.repo}:FILE: {listed}")


def _of_quantization(models: Sequence[RemoteModel], what: str) -> RemoteModel | None:
    """The one with `what` as a word of its name; of several the one with the shortest name."""
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(what)}(?![A-Za-z0-9_])", re.IGNORECASE)
    found = [model for model in models if word.search(_PART.sub("", model.name))]
    return min(found, key=lambda model: (len(model.name), model.name), default=None)


def _parameters(match: re.Match[str]) -> float:
    return float(match[1]) * (1e9 if match[2].upper() == "B" else 1e6)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _told(repo: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into a line that says what to do."""
    import httpx
    from huggingface_hub import errors

    by_hand = "a GGUF copied here by hand works as well: lcspec chat FILE"
    try:
        yield
    except errors.GatedRepoError:
        raise DownloadError(
            f"{repo} asks for consent: accept its terms on its page, then set HF_TOKEN (or: hf auth login)"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise DownloadError(
            f"the hub has no model {repo}, or it is private: check the spelling, or set HF_TOKEN"
        ) from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        offline: Any = os.environ.get("HF_HUB_OFFLINE")
        why = "HF_HUB_OFFLINE is set" if offline else str(error).splitlines()[0]
        raise DownloadError(f"{repo} cannot be downloaded: {why}; {by_hand}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        raise DownloadError(f"the hub answers {status} for {repo}: try again later") from None
    except httpx.HTTPError as error:
        raise DownloadError(
            f"the hub cannot be reached ({str(error) or type(error).__name__}): is this machine online? What was "
            f"downloaded is kept, the same command goes on; {by_hand}"
        ) from None
    except OSError as error:
        raise DownloadError(
            f"{repo} was not downloaded ({str(error).splitlines()[0] if str(error) else type(error).__name__}): "
            "what came is kept, the same command goes on"
        ) from None
