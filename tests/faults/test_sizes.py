"""What is too large is refused with words, or carried; never retried for ever."""

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from support.oracle import check_verified
from support.platform import Platform
from support.scripts import call, shell, simple

THREE_MB = 3 * 1024 * 1024


@pytest.mark.slow
async def test_three_megabytes_from_the_model_and_from_a_command(platform: Platform, full_stack: EmbeddedStack) -> None:
    threads = simple(
        call("write_file", path="big", content="0123456789abcde\n" * (THREE_MB // 16)),
        shell("cat big"),
        shell("wc -c < big > size"),
    )
    task_id = await platform.submit(threads, acceptance=[f"grep -qx {THREE_MB} size"])
    await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    assert outcome.results("shell")[0]["output_bytes"] == THREE_MB


async def test_three_megabytes_in_a_request_are_refused(platform: Platform) -> None:
    body = {"instruction": "x" * THREE_MB, "workspace": {"source": "none"}}
    response = await platform.client.post("/v1/tasks", json=body)
    assert response.status_code in {413, 422}
    assert response.json()["retryable"] is False
