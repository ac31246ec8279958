"""Operations ``run``, ``poll`` and ``kill``."""

from __future__ import annotations

import os
import time

from .command import RunningCommand
from .loop import HIGH_WATER
from .protocol import CHUNK, MAX_COMMAND, MAX_STDIN, OpError
from .tree import unlock_roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from .connections import Connection
    from .protocol import Steps
    from .supervisor import Supervisor

MAX_RUNNING: Final = 64
MAX_ARGUMENT: Final = 128 * 1024 - 1
"""Bytes of one argument of a program (``MAX_ARG_STRLEN`` of Linux, without its NUL); longer text goes through a file."""


def script_file(script: bytes) -> str:
    """Return the path of an unnamed file with the text, which this process and what it becomes can read."""
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)  # noqa: S108  a private one
    view = memoryview(script)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    return f"/proc/self/fd/{fd}"


class Commands:
    """Commands by the id that they were started with. ``env`` is the task's environment, ``basic_env`` the platform's."""

    def __init__(self, supervisor: Supervisor, env: dict[str, str], basic_env: dict[str, str]) -> None:
        self.supervisor = supervisor
        self.env = env
        self.basic_env = basic_env
        self.shell = next((path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path)), "/bin/sh")
        self.commands: dict[str, RunningCommand] = {}

    def require(self, exec_id: str) -> RunningCommand:
        command = self.commands.get(exec_id)
        if command is None:
            raise OpError("exec_not_found", f"no command with id {exec_id} was started in this sandbox")
        return command

    @staticmethod
    def send_result(connection: Connection, command: RunningCommand, *, reattached: bool) -> Steps:
        """Send the output that is kept in frames with ``out``, then ``end`` with the result.

        ``head`` and ``tail`` are the bytes kept of the beginning and the end, ``total`` those that there were.
        ``exit_code`` and ``signal`` are ``null`` while ``running``. ``oom``, ``pids``, ``disk``: a limit was reached.
        ``leftovers``: processes ended with it. ``duration``: seconds. ``reattached``: an earlier request started it.
        """
        head, tail = command.kept()
        for part in (head, tail):
            for start in range(0, len(part), CHUNK):
                connection.send({"out": 1}, part[start : start + CHUNK])
                yield None
        connection.send(
            {
                "end": 1,
                "exit_code": command.exit_code if command.finished else None,
                "signal": command.signal if command.finished else None,
                "timed_out": command.timed_out,
                "oom": command.oom,
                "pids": command.pids_hit,
                "disk": command.disk_full,
                "leftovers": command.leftovers,
                "head": len(head),
                "tail": len(tail),
                "total": command.total,
                "duration": (command.ended if command.finished else time.monotonic()) - command.started,
                "running": not command.finished,
                "reattached": reattached,
            }
        )

    def run(self, connection: Connection, header: dict[str, Any], payload: bytes) -> Steps:
        """Run a command, or attach to the one with the same id.

        ``exec_id``; ``command``: a list: a program without a shell and without the task's environment; without it,
        the first ``script_bytes`` bytes of the payload are text for the shell, at most ``MAX_COMMAND``; ``cwd``; ``env``: added to the environment; ``limit_s``: time limit of a foreground command;
        ``background``: answer once it has started; ``end_leftovers``: end what it left running; ``output_limit``:
        bytes kept; ``follow``: send output as it comes, in frames with ``at``, its offset. Payload: the text, then stdin, at most
        ``MAX_STDIN`` bytes; ``more`` in a header says that another frame of it follows. Answer: :meth:`send_result`.
        Errors: ``too_many_commands``, ``process_limit``, ``file_not_found`` (``cwd``), ``invalid`` (stdin).
        """
        stdin = bytearray(payload)
        more = header.get("more")
        while more:
            part, data = yield "frame"
            stdin += data
            more = part.get("more")
            if len(stdin) > MAX_STDIN + MAX_COMMAND:
                raise OpError("invalid", f"stdin is longer than {MAX_STDIN} bytes")
        exec_id = str(header["exec_id"])
        command = self.commands.get(exec_id)
        reattached = command is not None
        if command is None:
            command = self.start_command(exec_id, header, bytes(stdin))
        if header.get("background"):
            yield from self.send_result(connection, command, reattached=reattached)
            return
        task, cursor = connection.task, 0
        if task is None:
            return
        while True:
            if header.get("follow"):
                while True:
                    offset, data = command.piece(cursor)
                    if not data:
                        break
                    connection.send({"at": offset}, data)
                    cursor = offset + len(data)
                    if len(connection.out) > HIGH_WATER:
                        yield None
            if command.finished:
                break
            command.watchers.add(task)
            yield "wake"
        yield from self.send_result(connection, command, reattached=reattached)

    def start_command(self, exec_id: str, header: dict[str, Any], stdin: bytes) -> RunningCommand:
        if len(self.supervisor.by_pid) >= MAX_RUNNING:
            raise OpError("too_many_commands", f"{MAX_RUNNING} commands are running in this sandbox already")
        cwd, script_bytes = str(header["cwd"]), int(header.get("script_bytes", 0))
        wanted: list[str | bytes] = header.get("command") or []
        if script_bytes > MAX_COMMAND or len(stdin) - script_bytes > MAX_STDIN:
            raise OpError("invalid", f"a command can be {MAX_COMMAND} bytes long, its stdin {MAX_STDIN}")
        unlock_roots()
        if not os.path.isdir(cwd):
            raise OpError("file_not_found", f"the working directory {cwd} does not exist")
        own = bool(wanted)  # a program of the platform's: no shell, nothing of the task's environment
        env = {**(self.basic_env if own else self.env), **header["env"], "PWD": cwd}
        script, stdin = stdin[:script_bytes], stdin[script_bytes:]
        program = wanted[0] if own else self.shell
        shell: list[str | bytes] = [self.shell.rpartition("/")[2], "-c", script]
        argv = wanted if own else shell

        def body() -> None:
            os.chdir(cwd)
            if len(script) > MAX_ARGUMENT:
                argv[1:] = [script_file(script)]
            os.execvpe(program, argv, env)  # noqa: S606  a shell, or deliberately none

        command = RunningCommand(exec_id, int(header["output_limit"]))
        command.oom_mark = self.supervisor.limits.oom_kills()
        self.supervisor.spawn(command, body, stdin)
        self.commands[exec_id] = command
        if not header.get("background"):
            command.deadline = command.started + float(header["limit_s"])
            command.end_leftovers = bool(header.get("end_leftovers"))
        return command

    def poll(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """Answer with what there is of the command ``exec_id`` (:meth:`send_result`). Errors: ``exec_not_found``."""
        yield from self.send_result(connection, self.require(str(header["exec_id"])), reattached=True)

    def kill(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """End the command ``exec_id`` and all its processes, and answer once they are gone. Errors: ``exec_not_found``."""
        command = self.require(str(header["exec_id"]))
        self.supervisor.end(command)
        while command.killing:
            yield time.monotonic() + 0.01
        connection.send({"end": 1})
