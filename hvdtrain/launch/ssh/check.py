"""Check all hosts at once by ssh, before anything is started.

What ssh says on failure is the same on all systems: sources are ssh(1) and OpenSSH's ssh.c, sshconnect.c and misc.c.
"""

import fnmatch
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.ssh.host_addresses import is_this_machine

CHECK_SECONDS = 15.0  # for each host to answer
_AT_ONCE = 64  # logins; sshd(8) itself takes as many from all sides as its MaxStartups says
_SHOWN = 8
_PYTHON_MISSING = (126, 127)  # what a shell says of a program that it cannot start: POSIX, section 2.8.2
_SYS = '__import__("sys")'
_SAY_OLD = f'"Python_%s_is_too_old"%{_SYS}.version.split().pop(0)'
_START_PYTHON = f"-EsSc '{_SYS}.exit({_SYS}.version_info<(3,11)and({_SAY_OLD}))'"
"""It says so from 2.7 on, where an agent would end in a SyntaxError. Python's variables and packages are kept out. It
has no spaces, since a host's `python` may be a script that does not keep words together."""
_TOO_OLD = r"Python_(\S+)_is_too_old"


@dataclass(frozen=True, slots=True)
class Finding:
    """What keeps a host from being used, and what to do."""

    host: str
    message: str
    hint: str


_SAID = (
    # What ssh says; what that means; what to do. {detail} is the pattern's first group.
    (
        _TOO_OLD,
        "it has Python {detail}; hvdtrain needs Python 3.11 to 3.13",
        "install hvdtrain with such a Python at the same path on every host, or name the interpreter with --python",
    ),
    (
        r"Could not resolve hostname [^:]*: (.*)",
        "its name does not resolve here ({detail})",
        "check the spelling, or add {host} to DNS, /etc/hosts or ~/.ssh/config",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one that is known here, so it may be another machine",
        "find out why; if it was set up again, `ssh-keygen -R {host}`, then `ssh {host}` once",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "its host key is not known here",
        "log in once by hand and compare the key: `ssh {host}`",
    ),
    (
        r"(Permission denied.*|Too many authentication failures|Authentication failed.*)",
        "it refuses your key ({detail})",
        "let `ssh {host} true` work without a question: `ssh-copy-id {host}`, and ssh-add for a key with a passphrase",
    ),
    (
        r"(Connection refused)",
        "nothing listens on its ssh port ({detail})",
        "start sshd there, or say which port it has with --ssh-port",
    ),
    (
        r"(Connection timed out|Operation timed out|No route to host|Network is unreachable|Host is down)",
        "it cannot be reached ({detail})",
        "see that it is on, and that no firewall is between: `ssh {host} true`",
    ),
)


_OTHER_WAYS = ("OMPI_MCA_plm*", "PRTE_MCA_plm*", "HYDRA_LAUNCHER*", "I_MPI_HYDRA_BOOTSTRAP*", "SLURM_JOB_ID")
"""Variables that let mpirun start its helpers by something else than plain ssh."""


def require_usable_hosts(job: JobSpec, launcher: str, environ: Mapping[str, str]) -> None:
    """Refuse a job whose other hosts cannot be used by ssh, if its launcher will use that.

    By the caller's variables `environ` it knows, for one, that Slurm has its own way to start mpirun's helpers. Each
    host has `CHECK_SECONDS` to answer, or the job's start timeout if that is less. Raises UsageError: it names hosts,
    causes, and what to do.
    """
    names = [host.name for host in job.used_hosts if not host.is_local]
    if launcher == "mpirun" and any(fnmatch.filter(environ, pattern) for pattern in _OTHER_WAYS):
        return
    findings = check_hosts(names, job.ssh_port, min(CHECK_SECONDS, job.start_timeout), job.python)
    if not findings:
        return
    facts = [f"{finding.host}: {finding.message}" for finding in findings[:_SHOWN]]
    more = f", and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    hints = list(dict.fromkeys(finding.hint for finding in findings[:_SHOWN]))
    raise UsageError(
        f"{len(findings)} of {len(names)} hosts cannot be used: {'; '.join(facts)}{more}.",
        "Each of them is to run workers.",
        f"{'; '.join(hints)}.",
    )


def check_hosts(
    names: Sequence[str], port: int | None = None, deadline_s: float = CHECK_SECONDS, python: str | None = None
) -> list[Finding]:
    """Log in to all hosts at once, asking nothing of anybody; a finding for each that cannot be used, in their order.

    This machine's own name is tried too, and never reported. `port` None: what ssh's own configuration says; `python`:
    a program that must start on each host, else `true`. Raises UsageError: there is no ssh here.
    """
    if not names:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
        findings = pool.map(lambda name: _check(name, port, deadline_s, python), names)
        return [finding for finding in findings if finding is not None]


def check_python_here(names: Sequence[str], python: str) -> list[Finding]:
    """A finding for each of this machine's `names` if its interpreter is too old. Other faults show when it starts."""
    code, said = _answer(["sh", "-c", f"{shlex.quote(python)} {_START_PYTHON}"], CHECK_SECONDS)
    return [_from_ssh(name, code or 0, said) for name in names] if re.search(_TOO_OLD, said) else []


def _check(host: str, port: int | None, deadline_s: float, python: str | None) -> Finding | None:
    code, said = _ssh(host, port, deadline_s, python)
    if code == 0:
        return None
    if code is None:
        message, hint = f"it gave no answer within {deadline_s:g} s", "see what it waits for: `ssh -v {host} true`"
        finding = Finding(host, message, hint.format(host=host))
    elif code in _PYTHON_MISSING and python is not None:
        hint = "install hvdtrain at the same path on every host, or name the interpreter with --python"
        finding = Finding(host, f"it has no {python}", hint)
    else:
        finding = _from_ssh(host, code, said)
    # Launchers need no ssh where they are. Asked last: a name that does not resolve takes its time.
    return None if is_this_machine(host) else finding


def _from_ssh(host: str, code: int, said: str) -> Finding:
    for pattern, message, hint in _SAID:
        if match := re.search(pattern, said):
            detail = (match[1] if match.re.groups else match[0]).strip().rstrip(".")
            return Finding(host, message.format(detail=detail[:120]), hint.format(host=host))
    last = (said.strip().splitlines() or [f"exit code {code}"])[-1].strip()
    return Finding(host, f"ssh failed ({last[:200]})", f"see why: `ssh -v {host} true`")


def _ssh(host: str, port: int | None, deadline_s: float, python: str | None) -> tuple[int | None, str]:
    """Exit code (None: too late) and what ssh said."""
    connect = max(1, int(0.8 * deadline_s))  # so that ssh itself has time to say what it waited for
    options = ["BatchMode=yes", f"ConnectTimeout={connect}", "LogLevel=ERROR"]
    argv = ["ssh", "-n", "-T", "-x", *(word for option in options for word in ("-o", option))]
    argv += ["-p", str(port)] if port is not None else []
    # The remote shell reads one line; an interpreter that starts proves more than a file that exists.
    command = f"{shlex.quote(python)} {_START_PYTHON}" if python is not None else "true"
    return _answer([*argv, "--", host, command], deadline_s)


def _answer(argv: Sequence[str], deadline_s: float) -> tuple[int | None, str]:
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,  # with its own group, helpers such as a ProxyCommand's end with it
            )
        except FileNotFoundError as error:
            raise UsageError(
                "There is no ssh here.", "Other hosts are reached by it.", "install it: apt-get install openssh-client."
            ) from error
        try:
            code: int | None = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        output.seek(0)
        return code, output.read(64 * 1024).decode(errors="replace")
