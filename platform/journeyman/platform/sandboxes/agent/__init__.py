"""The agent: process 1 of a sandbox, and the other end of :mod:`journeyman.platform.sandboxes.wire`.

The package runs inside the sandbox as the top-level package ``agent``: compiled, on a read-only mount, started with
``python3 -I -S -X utf8 /run/agent/boot.pyc``. It has the standard library alone, and nothing of the task on its path.
Its modules therefore import each other relatively, import little, and import it late: start-up is part of every lease.

==================  ==============================================================================================
``protocol``        Frames, limits, JSON, refused requests (shared with the platform's side)
``connections``     One client: frames in, frames out, the request that it waits for
``loop``            The event loop: connections, tasks, timers
``isolation``       Mounts, user namespace, capabilities, seccomp filter: once, before anything of the task runs
``processes``       The process table, memory of processes, signals
``command``         One command: its process and a bounded record of its output
``child``           The forked process that becomes a command
``supervisor``      Start, feed, reap and end commands
``limits``          Memory and processes of all commands together
``commands``        Operations ``run``, ``poll``, ``kill``
``files``           Operations ``read``, ``write``, ``list``, and confinement of paths
``search``          Operation ``search``
``tree``            Walk, open and remove what commands made unreadable
``scans``           Operations ``scan``, ``mark``
``contents``        Operation ``blobs``
``restore``         Operation ``tree``
``main``            Configuration, operations ``ping`` and ``renew``, start
==================  ==============================================================================================

One thread does everything. A request is a generator; what it yields says when it goes on (:data:`.protocol.Wait`).
Long work is cut into slices, so that the agent answers while commands flood it. It keeps a bounded number of bytes for
any command or connection.

Trust: processes in the sandbox run under the agent's own uid. They cannot signal it (it is process 1 of its namespace),
read it (it is not dumpable) or change its limits (the seccomp filter refuses that), and have no path to its socket.
"""
