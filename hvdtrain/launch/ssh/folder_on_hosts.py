"""A private folder of whoever has started the launcher, on all hosts of the job: its files come and go through ssh.

So a function and its results need no disk that all hosts share, and no connection but those of the launcher to its
agents, of which ssh knows both ends. The bytes travel as text in questions and answers, in parts.
"""

import os
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.ssh.agent_client import ask_at_once
from hvdtrain.launch.ssh.link import AgentError, HostLink

FOLDER_VARIABLE: Final = "HVDTRAIN_FOLDER_ON_HOSTS"
"""The folder, which must have mode 0700; `hvdtrain.run` sets it for the launcher that it starts."""

_PART_BYTES: Final = 2**20  # between two parts there is time for heartbeats, also of a slow connection
_SECONDS: Final = 60.0  # for one part


class FoldersHere:
    """The agent's side: folders that it makes, and removes when it ends."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    @property
    def questions(self) -> Mapping[str, Callable[..., Any]]:
        """Name → what answers it."""
        return {"make_folder": self._make, "put": self._put, "list_files": self._list, "get": self._get}

    def remove(self) -> None:
        """Remove the folders that were made."""
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)

    def _make(self, folder: str) -> bool:
        """Returns whether it is new: on the launcher's own machine, and on a shared disk, it is there."""
        try:
            os.mkdir(folder, 0o700)  # who reads the files makes sure that nobody else could have made the folder
        except FileExistsError:
            return False
        self._made.add(folder)
        return True

    def _put(self, folder: str, name: str, part: str) -> None:
        with open(os.path.join(folder, name), "ab") as file:
            file.write(b64decode(part))

    def _list(self, folder: str) -> dict[str, int]:
        return {entry.name: entry.stat().st_size for entry in os.scandir(folder)}

    def _get(self, folder: str, name: str, at: int) -> str:
        with open(os.path.join(folder, name), "rb") as file:
            file.seek(at)
            return b64encode(file.read(_PART_BYTES)).decode()


class FolderOnHosts:
    """The launcher's side. Args: `folder`: the one of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._links: Sequence[HostLink] = ()  # to agents that have made the folder

    @classmethod
    def asked_for(cls, environ: Mapping[str, str]) -> "FolderOnHosts | None":
        """The one that whoever has started this launcher names; None where there is none."""
        folder = environ.get(FOLDER_VARIABLE)
        return cls(Path(folder)) if folder else None

    def send(self, links: Sequence[HostLink], is_interrupted: Callable[[], bool]) -> None:
        """Make the folder, with the files that it has here, on all hosts. It ends early when it `is_interrupted`.

        Raises UsageError: it cannot be made, or written, on a host.
        """
        made = self._ask(links, "make_folder")
        self._links = [link for link, is_new in zip(links, made, strict=True) if is_new]
        for path in sorted(self._folder.iterdir()):
            with path.open("rb") as file:
                while (part := file.read(_PART_BYTES)) and not is_interrupted():
                    self._ask(self._links, "put", name=path.name, part=b64encode(part).decode())

    def fetch(self) -> None:
        """Bring the files that are new there here. Raises HvdtrainError: a host does not send them."""
        for link in self._links:
            try:
                for name, size in link.ask("list_files", _SECONDS, folder=str(self._folder)).items():
                    self._fetch_file(link, name, int(size))
            except (AgentError, OSError) as error:
                raise HvdtrainError(
                    f"{link.name} has not sent the results of its workers: {str(error).rstrip('.')}.",
                    "The workers have ended, and their results are lost.",
                    "call it again; with shared_folder=, results are in a folder that all hosts share.",
                ) from error

    def _fetch_file(self, link: HostLink, name: str, size: int) -> None:
        path = self._folder / Path(name).name
        if path.exists():
            return
        with path.open("wb") as file:
            while (at := file.tell()) < size:
                part = link.ask("get", _SECONDS, folder=str(self._folder), name=name, at=at)
                if not part:
                    raise AgentError(f"{name} has become shorter")
                file.write(b64decode(part))

    def _ask(self, links: Sequence[HostLink], do: str, **arguments: Any) -> list[Any]:
        arguments = {"folder": str(self._folder), **arguments}
        answers = ask_at_once([(link, do, arguments) for link in links], _SECONDS)
        for link, answer in zip(links, answers, strict=True):
            if isinstance(answer, AgentError):
                is_unknown = str(answer) == repr(do)  # to an agent of an earlier version
                why = "its hvdtrain is older than this one" if is_unknown else str(answer).rstrip(".")
                raise UsageError(
                    f"The folder {self._folder} cannot be made and filled on {link.name}: {why}.",
                    "The function gets to its workers there, and their results come from there.",
                    "set TMPDIR to a folder that all hosts have, or name one that they share by shared_folder=.",
                )
        return answers
