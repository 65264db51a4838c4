"""Data and output folder: what each host sees of them, and whether all see the same."""

import glob
import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.doctor.findings import Facts, Finding, HostFacts, Status, each_value
from hvdtrain.units import in_bytes

MAX_FILES = 200_000  # Of one path; of more, the first so many are compared


def data_facts(paths: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """For each path or glob: `path`, `files`, `bytes`, `fingerprint` of names and sizes, `readable` (the first file can
    be opened), `whole` (false where there were too many files or the time was up), `error` (a text or None). URLs are
    left out.
    """
    deadline = time.monotonic() + seconds
    return [_described(path, deadline) for path in paths if "://" not in path]


def _described(path: str, deadline: float) -> dict[str, Any]:
    digest, files, size, first, whole = hashlib.sha256(), 0, 0, None, True
    try:
        for name, length, file in _files(path):
            if files >= MAX_FILES or time.monotonic() > deadline:
                whole = False
                break
            digest.update(f"{name}\0{length}\n".encode(errors="surrogateescape"))
            files, size, first = files + 1, size + length, first or file
        if first is not None:
            with open(first, "rb") as opened:
                opened.read(1)
        error = None if first else "there are no files"
    except OSError as refusal:
        error = f"{refusal.filename or path}: {refusal.strerror}"
    return {
        "path": path,
        "files": files,
        "bytes": size,
        "fingerprint": digest.hexdigest()[:16],
        "whole": whole,
        "error": error,
    }


def _files(path: str) -> Iterator[tuple[str, int, str]]:
    """(name below the path, bytes, path) of every file, in the same order on every host."""
    if not Path(path).exists() and glob.has_magic(path):
        for entry in sorted(glob.glob(_literal_folder(path), recursive=True)):
            yield from _below(entry, os.path.basename(entry))
    else:
        yield from _below(path, "")


def _literal_folder(pattern: str) -> str:
    """The pattern, in which folders at its beginning that exist as they are written mean themselves, as for training.

    (The catalog's own code is not used here: the doctor works where data_sharding cannot be imported.)
    """
    parts = Path(pattern).parts
    count = next(n for n in range(len(parts) - 1, -1, -1) if n == 0 or Path(*parts[:n]).is_dir())
    return os.path.join(*(glob.escape(part) for part in parts[:count]), *parts[count:])


def _below(path: str, shown: str) -> Iterator[tuple[str, int, str]]:
    if not os.path.isdir(path):
        yield shown, os.stat(path).st_size, path
        return
    with os.scandir(path) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        yield from _below(entry.path, f"{shown}/{entry.name}")


def data_findings(hosts: HostFacts, urls: Sequence[str] = ()) -> list[Finding]:
    """For each path: what there is, where it cannot be read, and whether hosts see the same files. For each URL, that
    nobody has looked."""
    listings: dict[str, dict[str, Any]] = {}
    for host, facts in hosts.items():
        for listing in facts["data"]:
            listings.setdefault(listing["path"], {})[host] = listing
    remote = [
        Finding("data", "warn", f"{url} was not examined: it is a URL", f"`hvdtrain shard index {url}` reads it.")
        for url in urls
    ]
    return remote + [finding for path, by_host in listings.items() for finding in _data(path, by_host)]


def _data(path: str, listings: Mapping[str, Any]) -> list[Finding]:
    bad = [
        Finding("data", "fail", f"{path}: {listing['error']}", "mount it there, or copy it to the same path.", host)
        for host, listing in listings.items()
        if listing["error"]
    ]
    good = {host: listing for host, listing in listings.items() if not listing["error"]}
    if not good:
        return bad
    first = next(iter(good.values()))
    if not all(listing["whole"] for listing in good.values()):
        fact = f"{path}: only {first['files']} files were looked at, there was no time for more"
        return [*bad, Finding("data", "warn", fact, "compare them with `hvdtrain shard index` on each host.")]
    if len({listing["fingerprint"] for listing in good.values()}) > 1:
        counts = {host: f"{listing['files']} files of {in_bytes(listing['bytes'])}" for host, listing in good.items()}
        hint = "let every host see the same files: else ranks plan different records, and the job refuses to start."
        return [*bad, Finding("data", "fail", f"{path} differs: {each_value(counts)}", hint)]
    where = "the same on all hosts" if len(good) > 1 else "readable"
    fact = f"{path}: {first['files']} files, {in_bytes(first['bytes'])}, {where}"
    return [*bad, Finding("data", "ok", fact, "", "" if not bad else ", ".join(good))]


def output_findings(
    hosts: HostFacts, seen: Mapping[str, list[int]], refused: Mapping[str, str], was_named: bool
) -> list[Finding]:
    """Whether every host writes to one output folder.

    Args:
        seen: host → numbers (places in `hosts`) of the hosts whose token files it saw.
        refused: host → why it could not make its own; "" where something that is not a folder is in the way.
        was_named: whether the user named the folder; a guessed one that is not shared is only worth a warning.
    """
    outputs = {host: facts["machine"]["output"] for host, facts in hosts.items()}
    folders = {host: output["folder"] for host, output in outputs.items()}
    findings = [_refused(host, outputs[host], reason) for host, reason in refused.items()]
    wanted = {number for number, host in enumerate(hosts) if host not in refused}
    names = list(hosts)
    blind = {host: sorted(wanted - set(numbers)) for host, numbers in seen.items() if wanted - set(numbers)}
    if blind:
        host, missing = next(iter(blind.items()))
        status: Status = "fail" if was_named else "warn"
        fact = f"{host} does not see in {folders[host]} what {', '.join(names[n] for n in missing)} writes there"
        hint = "choose an --output-dir on a disk that all hosts mount: checkpoints, logs and the audit belong together."
        findings.append(Finding("output folder", status, fact, hint))
    elif not refused:
        findings.append(Finding("output folder", "ok", _usable(next(iter(outputs.values())), len(hosts))))
    return findings


def _refused(host: str, output: Facts, reason: str) -> Finding:
    path, folder, obstacle = output["path"], output["folder"], output["obstacle"]
    hint = "choose another --output-dir, or change the folder's owner or rights."
    if obstacle is not None:
        fact = f"{path} is not a folder" if obstacle == path else f"{path} cannot be made: {obstacle} is not a folder"
        hint = "choose another --output-dir, or move away what has that name."
    elif path == folder:
        fact = f"{folder} cannot be written: {reason}"
    else:
        fact = f"{path} cannot be made in {folder}: {reason}"
    return Finding("output folder", "fail", fact, hint, host)


def _usable(output: Facts, hosts: int) -> str:
    path, folder = output["path"], output["folder"]
    if path == folder:
        return f"{folder} {'can be written' if hosts == 1 else 'is the same folder on all hosts, and can be written'}"
    return f"{path} can be made in {folder}{'' if hosts == 1 else ', the same folder on all hosts'}"


def working_dir_findings(hosts: HostFacts, wanted: str) -> list[Finding]:
    """Whether workers can start where the launcher is called; relative paths lead elsewhere otherwise."""
    hint = f"mount {wanted} there, or call the launcher in a folder that all hosts have."
    return [
        Finding("working folder", "warn", f"it has no {wanted}: workers start in {facts['working_dir']}", hint, host)
        for host, facts in hosts.items()
        if facts["working_dir"] != wanted
    ]
