"""The commands on memories: each prints for people or programs and returns its exit code."""

import sys
from collections.abc import Sequence

from journeyman.apps.cli.client import Api
from journeyman.apps.cli.inputs import text_or_stdin
from journeyman.apps.cli.session import Target, connected, print_json, print_table, suggest
from journeyman.apps.cli.suggestions import Suggestion, command
from journeyman.apps.cli.text import counted, lines_of, one_line
from journeyman.apps.cli.view import Json
from journeyman.apps.exits import CommandError, Exit


def list_memories(
    target: Target,
    *,
    kinds: Sequence[str] | None,
    origins: Sequence[str] | None,
    task_id: str | None,
    state: str,
    limit: int,
    as_json: bool,
) -> Exit:
    with connected(target) as api:
        query = {"kind": kinds or None, "origin": origins or None, "task_id": task_id, "state": state}
        found = list(api.pages("/v1/memory", limit=limit, **query))
    if as_json:
        print_json(found)
    elif not found:
        print("No memories yet. Agents write them as they work, and so can you.", file=sys.stderr)
        suggest(Suggestion("write one", f'{command()} memory add "…"'))
    else:
        rows = [
            (str(each["id"]), str(each["kind"]), _who(each), str(each["uses"]), one_line(str(each["text"]), 100))
            for each in found
        ]
        print_table(("id", "kind", "from", "uses", "text"), rows)
    return Exit.OK


def search(target: Target, query: str, *, kinds: Sequence[str] | None, limit: int, as_json: bool) -> Exit:
    with connected(target) as api:
        body = {"query": query, "limit": limit, "kinds": list(kinds or ())}
        found = api.request("POST", "/v1/memory/search", json=body, repeatable=True).json()
    if as_json:
        print_json(found)
    elif found["data"]:
        rows = [
            (str(hit["id"]), f"{hit['score']:.3f}", f"{hit['rank']:.3f}", _who(hit), one_line(str(hit["text"]), 100))
            for hit in found["data"]
        ]
        print_table(("id", "score", "rank", "from", "text"), rows)
    elif not found["degraded"]:
        print("Nothing that fits is known.", file=sys.stderr)
    if found["degraded"]:
        print(
            "The memory index or the embedder did not answer in time: searched by words alone, and more may be known.",
            file=sys.stderr,
        )
        return Exit.PLATFORM
    return Exit.OK


def show(target: Target, memory_id: str, *, as_json: bool) -> Exit:
    with connected(target) as api:
        memory = api.get(_path(api, memory_id))
    if as_json:
        print_json(memory)
        return Exit.OK
    print("\n".join(lines_of(str(memory["text"]))))
    facts = [str(memory["kind"]), _who(memory), str(memory["state"])]
    facts += [f"confirmed {counted(memory['confirmations'], 'time')}", f"used {counted(memory['uses'], 'time')}"]
    print(f"\n{memory['id']}: {', '.join(facts)}")
    source = memory["source"]
    if source is not None:
        at = f", event {source['event_seq']}" if source["event_seq"] is not None else ""
        print(f"from {source['task_id']} ({source['task_state']}{at}): {one_line(str(source['task_title']), 80)}")
    if memory["superseded_by"]:
        print(f"superseded by {memory['superseded_by']}")
    for older in memory["supersedes"]:
        print(f"supersedes {older}")
    for change in memory["history"]:
        who = change["api_key_id"] or change["event_id"] or "the index"
        before = "" if change["action"] == "added" else f'; it was "{one_line(str(change["text"]), 60)}"'
        print(f"{change['time'][:19]}  {change['action']} by {who}{before}")
    return Exit.OK


def add(target: Target, text: str, *, kind: str, supersedes: str | None, as_json: bool) -> Exit:
    body: Json = {"text": text_or_stdin(text, "The text").strip(), "kind": kind}
    if supersedes is not None:
        body["supersedes"] = supersedes
    with connected(target) as api:
        memory = api.command("/v1/memory", body)
    if as_json:
        print_json(memory)
        return Exit.OK
    print(memory["id"])
    if memory["confirmations"]:
        print("The project knew that already; it counts for more now.", file=sys.stderr)
    return Exit.OK


def edit(target: Target, memory_id: str, *, text: str | None, kind: str | None, as_json: bool) -> Exit:
    changes = {"text": None if text is None else text_or_stdin(text, "The text").strip(), "kind": kind}
    body = {name: value for name, value in changes.items() if value is not None}
    if not body:
        raise CommandError("There is nothing to change: give --text or --kind.")
    with connected(target) as api:
        memory = api.request("PATCH", _path(api, memory_id), json=body, repeatable=True).json()
    if as_json:
        print_json(memory)
    else:
        print(f"{memory['id']} ({memory['kind']}): {one_line(str(memory['text']))}")
    return Exit.OK


def delete(target: Target, memory_id: str | None, *, task_id: str | None, as_json: bool) -> Exit:
    if (memory_id is None) == (task_id is None):
        raise CommandError("Say what to delete: a memory's id, or --task for all that a task wrote.")
    with connected(target) as api:
        if memory_id is not None:
            deleted = api.request("DELETE", _path(api, memory_id)).json()
            said = f"{deleted['id']} is deleted."
        else:
            deleted = api.request("DELETE", "/v1/memory", params={"task_id": task_id}).json()
            said = f"Deleted {counted(len(deleted['deleted']), 'memory', 'memories')} of {task_id}."
            if deleted["kept"]:
                said += f" Kept {len(deleted['kept'])} that a person has corrected: {', '.join(deleted['kept'])}"
    if as_json:
        print_json(deleted)
    else:
        print(said)
    return Exit.OK


def _path(api: Api, memory_id: str) -> str:
    return f"/v1/memory/{api.segment(memory_id)}"


def _who(memory: Json) -> str:
    if memory["origin"] == "person":
        return "a person"
    edited = ", edited" if memory["edited_at"] else ""
    return f"{memory['task_id'] or memory['origin']}{edited}"
