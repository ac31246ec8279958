"""What is found at the addresses that people try first."""

from support.api import Caller


async def test_the_root_names_what_there_is(caller: Caller) -> None:
    response = await caller.get("/", headers={"accept": "*/*"})
    assert response.json()["api"] == "/v1"
    for name in ("openapi", "reference", "health"):
        assert (await caller.get(response.json()[name])).status_code == 200
    page = await caller.get("/", headers={"accept": "text/html,application/xhtml+xml"})
    assert page.headers["content-type"].startswith("text/html")
    assert 'href="/docs"' in page.text


async def test_the_reference_lists_every_address_and_loads_nothing(caller: Caller) -> None:
    page = await caller.get("/docs")
    document = (await caller.get("/openapi.json")).json()
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for path, operations in document["paths"].items():
        for verb in operations:
            assert f'<span class="verb">{verb.upper()}</span>{path}</code>' in page.text
    assert "<script" not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
