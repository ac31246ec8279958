"""Fetching a workspace with git: one program with fixed configuration, in a sandbox that reaches one address."""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from journeyman.agents.output import cut_text, readable
from journeyman.platform.egress.destinations import DEFAULT_PORTS, Destination
from journeyman.platform.egress.proxy import EgressProxy, relayed
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.sandboxes.port import EGRESS_SOCKET, WORKSPACE, ExecRequest, ExecResult, Sandbox

FETCH_TIMEOUT_S: Final = 900.0
CHECKOUT_TIMEOUT_S: Final = 300.0
REPORT_LIMIT: Final = 4000

_CONFIGURATION: Final = {
    # Nothing of the repository, the machine or an earlier life of the home directory runs or is read.
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.symlinks": "true",
    "init.templateDir": "",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # One protocol, one server: a redirect is an error that names its target, and no server names another one.
    "http.followRedirects": "false",
    "http.sslVerify": "true",
    "transfer.bundleURI": "false",
    "fetch.uriProtocols": "",
    "credential.helper": "",
    "core.askPass": "",
    "advice.detachedHead": "false",
}

_ENVIRONMENT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}

_COMMIT: Final = re.compile(r"[0-9a-f]{4,64}")
_WHOLE_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]*")
_REDIRECT: Final = re.compile(rb"returned error: 30[12378]\b")
_LOCATION: Final = re.compile(rb"^[^\n]*<= Recv header: *location: *([^\r\n]+)", re.IGNORECASE | re.MULTILINE)
_SERVICE: Final = re.compile(r"/info/refs(\?.*)?$")


class FetchFailed(InvalidInput):
    """The workspace could not be fetched; the message is for the person who named it."""

    code = "fetch_failed"


def plain_url(url: str, destination: Destination) -> str:
    """The URL in the one spelling that git and the proxy read alike: host, port and path as they were checked."""
    parts = urlsplit(url)
    host = f"[{destination.host}]" if ":" in destination.host else destination.host
    port = "" if destination.port == DEFAULT_PORTS[destination.scheme] else f":{destination.port}"
    path = quote(parts.path, safe="/%:@!$&'()*+,;=~-._")
    query = quote(parts.query, safe="/?%:@!$&'()*+,;=~-._")
    return urlunsplit((destination.scheme, host + port, path, query, ""))


class GitFetch:
    """One clone into a sandbox's empty workspace.

    What a repository says never runs: no hook, filter, driver, submodule or helper is configured, and git has nothing of
    the task's environment. Large files of LFS stay pointers, submodules stay empty directories.
    """

    def __init__(self, sandbox: Sandbox, url: str, destination: Destination, proxy: EgressProxy) -> None:
        self._sandbox = sandbox
        self._url = url
        self._plain_url = plain_url(url, destination)
        self._scheme = destination.scheme
        self._proxy = proxy
        self._commands = 0

    async def fetch(self, ref: str | None) -> None:
        """Clone, with all history, and check out a branch, tag or commit; without one what the server calls default.

        Raises :class:`FetchFailed`.
        """
        if ref is not None and (_REF.fullmatch(ref) is None or ".." in ref):
            raise FetchFailed(f"git clone of {self._url}: {ref!r} is not the name of a branch, a tag or a commit.")
        cloned = await self._reach(
            ["clone", "--quiet", "--no-checkout", "--template=", "--", self._plain_url, WORKSPACE]
        )
        if cloned.exit_code != 0:
            raise await self._failure(cloned)
        checkout = await self._default() if ref is None else await self._target(ref)
        if checkout is None:
            return
        result = await self._git(["checkout", "--quiet", "--force", *checkout, "--"], timeout_s=CHECKOUT_TIMEOUT_S)
        if result.exit_code != 0:
            raise self._failed("git checkout", result)

    async def _default(self) -> list[str] | None:
        if await self._is_commit("HEAD"):
            return ["HEAD"]
        found = await self._git(["for-each-ref", "--count=1", "refs/remotes"])
        if found.output.strip():
            raise FetchFailed(
                f"git clone of {self._url}: the repository's default branch does not exist; name a branch, tag or "
                "commit as the workspace's ref."
            )
        return None  # an empty repository

    async def _target(self, ref: str) -> list[str]:
        """Arguments of checkout. A branch is made locally and follows the server's; all else is checked out by itself."""
        if await self._is_commit(f"refs/remotes/origin/{ref}"):
            return ["-B", ref, "--track", f"refs/remotes/origin/{ref}"]
        if await self._is_commit(f"refs/tags/{ref}"):
            return ["--detach", f"refs/tags/{ref}"]
        if _COMMIT.fullmatch(ref.lower()):
            if await self._is_commit(ref):
                return ["--detach", ref]
            if _WHOLE_COMMIT.fullmatch(ref.lower()):
                # Not part of any branch or tag, for example of a pull request: many servers give it by name.
                fetched = await self._reach(["fetch", "--quiet", "origin", ref])
                if fetched.exit_code == 0 and await self._is_commit(ref):
                    return ["--detach", ref]
        raise FetchFailed(f"git clone of {self._url}: the repository has no branch, tag or commit {ref!r}.")

    async def _is_commit(self, name: str) -> bool:
        result = await self._git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"])
        return result.exit_code == 0

    async def _reach(self, arguments: Sequence[str], **env: str) -> ExecResult:
        """Run git with the way out."""
        return await self._run(relayed(EGRESS_SOCKET), arguments, FETCH_TIMEOUT_S, env)

    async def _git(self, arguments: Sequence[str], *, timeout_s: float = 60.0) -> ExecResult:
        return await self._run([], arguments, timeout_s, {})

    async def _run(
        self, before: Sequence[str], arguments: Sequence[str], timeout_s: float, env: dict[str, str]
    ) -> ExecResult:
        self._commands += 1
        configuration = [word for name, value in _CONFIGURATION.items() for word in ("-c", f"{name}={value}")]
        return await self._sandbox.run(
            ExecRequest(
                f"fetch_{self._commands}",
                [*before, "git", *configuration, *arguments],
                env={**_ENVIRONMENT, "GIT_ALLOW_PROTOCOL": self._scheme, **env},
                timeout_s=timeout_s,
                end_leftovers=True,
            )
        )

    async def _failure(self, cloned: ExecResult) -> FetchFailed:
        if _REDIRECT.search(cloned.output):
            # Git does not say where to. Its trace does; asked for only now, since it names every request.
            asked = await self._reach(
                ["ls-remote", "--quiet", self._plain_url, "HEAD"], GIT_TRACE_CURL="1", GIT_TRACE_CURL_NO_DATA="1"
            )
            found = _LOCATION.search(asked.output)
            if found is not None:
                location = _SERVICE.sub("", readable(found[1]).strip())[:2048]
                return FetchFailed(
                    f"git clone of {self._url}: the server says that the repository has moved to {location}. Redirects "
                    "are not followed; if you trust that address, submit the task with it."
                )
        return self._failed("git clone", cloned)

    def _failed(self, what: str, result: ExecResult) -> FetchFailed:
        reason = "ran out of time" if result.timed_out else f"ended with exit code {result.exit_code}"
        refused = "".join(f"\nThe platform refused a connection: {refusal}." for refusal in self._proxy.refusals)
        output = cut_text(readable(result.output), REPORT_LIMIT)
        return FetchFailed(f"{what} of {self._url} {reason}:\n{output}{refused}")
