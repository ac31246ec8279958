"""The program that starts inside the sandbox: put the agent's folder on the path, then run :func:`.main.main`.

``-I`` leaves the script's own folder off the path, so that it is added here. The mount is read-only.
"""

import sys

sys.path.append("/run/agent")

from agent.main import main  # type: ignore[import-not-found]  # the package's name inside a sandbox

main()
