"""The command that reaches a host and starts its agent. It shows no variables and no secret: those follow by stdin."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How hosts are reached, and which agent they run.

    Args:
        python: interpreter on the hosts.
        port: None: what ssh's configuration says.
        link_seconds: of silence, after which a host counts as lost, and a connection as refused.
        checks_host_keys: False: whoever answers is believed to be the host.
        program: ssh.
        agent: the module that runs on the hosts.
        folder: where the agent starts if that exists there; None: in the user's home.
        python_path: the agent's PYTHONPATH, with `folder`.
    """

    python: str
    port: int | None = None
    link_seconds: float = 15.0
    checks_host_keys: bool = True
    program: str = "ssh"
    agent: str = "hvdtrain.launch.ssh.agent"
    folder: str | None = None
    python_path: str = ""


def agent_argv(options: SshOptions) -> tuple[str, ...]:
    """What runs on the host. `-P`: a folder called `launch` in somebody's home must not be imported."""
    isolated = ("-P",) if options.folder is None else ()
    return (options.python, *isolated, "-m", options.agent, f"{options.link_seconds:g}")


def ssh_argv(options: SshOptions, host: str) -> tuple[str, ...]:
    """The ssh command for one host: it never asks, forwards nothing, and notices a dead link by itself."""
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": max(3, int(options.link_seconds)),
        # It gives up after interval × (count + 1), a little before the launcher would.
        "ServerAliveInterval": max(1, int(options.link_seconds / 5)),
        "ServerAliveCountMax": 3,
        "ForwardX11": "no",
        "ForwardAgent": "no",
        "ClearAllForwardings": "yes",
        # A connection that other sessions share would outlive this one, with its own settings.
        "ControlMaster": "no",
        "ControlPath": "none",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
    }
    if not options.checks_host_keys:
        settings |= {"StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR"}
    flags = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    port = ["-p", str(options.port)] if options.port is not None else []
    # ssh joins what follows the host by spaces and hands it to the user's shell there, so it is quoted as one word.
    return (options.program, "-T", *flags, *port, "--", host, f"exec {_on_host(options)}")


def _on_host(options: SshOptions) -> str:
    command = shlex.join(agent_argv(options))
    if options.folder is None:
        return command
    added = f"env {shlex.quote(f'PYTHONPATH={options.python_path}')} " if options.python_path else ""
    # sh -c: the login shell may be one that knows no 2>.
    return f"sh -c {shlex.quote(f'cd {shlex.quote(options.folder)} 2>/dev/null; exec {added}{command}')}"
