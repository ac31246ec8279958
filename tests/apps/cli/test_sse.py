from journeyman.apps.cli.sse import ServerSentEvent, parse


def test_events_comments_and_unfinished_ends() -> None:
    stream = ": ping\n\nid: 7\nevent: task.created\ndata: {\ndata: }\n\ndata:second\n\nid: 9\ndata: never finished"
    assert list(parse(stream.split("\n"))) == [
        None,
        ServerSentEvent("task.created", "{\n}", "7"),
        ServerSentEvent("message", "second", "7"),
    ]


def test_unknown_fields_and_odd_ids() -> None:
    stream = ["retry: 5", "id: a\x00b", "odd", "data: x", ""]
    assert list(parse(stream)) == [ServerSentEvent("message", "x", None)]
