"""The web page in a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from lcspec.server.lifecycle import Background
from tests.server.running import CODE, MODEL, background

pytestmark = [pytest.mark.server, pytest.mark.slow]

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
SECONDS = 120_000  # for answers; milliseconds


# Scoped to this file: as long as Playwright runs, no other event loop can on this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, from the system or from Playwright."""
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        if not Path(found).exists():
            pytest.skip("no Chromium is installed")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watch:
    """What goes wrong on a page without anybody seeing it: errors, and requests to elsewhere."""

    def __init__(self, page: Page, url: str) -> None:
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", lambda r: None if r.url.startswith((url, "blob:")) else self.problems.append(r.url))


@pytest.fixture
def page(browser: Browser, server: Background) -> Iterator[Page]:
    """The page, loaded in a window that knows nothing yet."""
    context = browser.new_context(viewport={"width": 1100, "height": 760}, permissions=["clipboard-read"])
    page = context.new_page()
    watch = Watch(page, server.url)
    page.goto(server.url)
    expect(page.locator("#model")).to_have_value(MODEL)
    yield page
    context.close()
    assert watch.problems == []


@pytest.fixture(scope="module")
def renderer(browser: Browser, server: Background) -> Iterator[Page]:
    """One page for all tests that only use its Markdown."""
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, server.url)
    page.goto(server.url)
    page.set_default_timeout(20_000)
    yield page
    context.close()
    assert watch.problems == []


def choose(page: Page, **values: str) -> None:
    """Fill in the settings."""
    expect(page.locator("#model option")).to_have_count(1)
    page.keyboard.press("Alt+s")
    for name, value in values.items():
        field = page.locator(f"[name={name}]")
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.click("#settings-save")


def ask(page: Page, text: str) -> None:
    """Send a message and wait for the end of the answer."""
    page.fill("#input", text)
    page.press("#input", "Enter")
    done(page)


def done(page: Page) -> None:
    expect(page.locator("#send")).to_have_text("Send", timeout=SECONDS)
    expect(page.locator(".answer").last.locator(".facts")).not_to_be_empty()


def endless(page: Page) -> None:
    """Answers that would go on to the end of the context."""

    def more(route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        route.continue_(post_data=json.dumps(body | {"ignore_eos": True}))

    page.route("**/v1/chat/completions", more)


def test_a_conversation_is_kept(page: Page) -> None:
    choose(page, temperature="0", max_tokens="20", system="Be brief.")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hello, how are you?")
    body = json.loads(sent.value.post_data or "")
    assert body["temperature"] == 0 and body["max_tokens"] == 20 and body["model"] == MODEL
    assert [m["role"] for m in body["messages"]] == ["system", "user"] and body["messages"][0]["content"] == "Be brief."
    first = page.locator(".answer .body").last.inner_text()
    assert first
    expect(page.locator(".facts")).to_contain_text("tokens")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "And now?")
    assert [m["role"] for m in json.loads(sent.value.post_data or "")["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    page.reload()
    page.locator("#list .name").click()
    expect(page.locator(".message")).to_have_count(4)
    expect(page.locator(".answer .body:not(.reasoning .body)").first).to_have_text(first, use_inner_text=True)
    page.keyboard.press("Alt+s")
    expect(page.locator("[name=system]")).to_have_value("Be brief.")
    expect(page.locator("[name=temperature]")).to_have_value("0")


def test_the_answer_streams_and_stops(browser: Browser) -> None:
    with background(slots=1, ctx=4096, draft=False) as server:
        context = browser.new_context()
        page = context.new_page()
        watch = Watch(page, server.url)
        page.goto(server.url)
        endless(page)
        page.fill("#input", "Tell me a story.")
        page.press("#input", "Enter")
        text = page.locator(".answer > .body")
        expect(text).to_contain_text(re.compile(r"\w"), timeout=SECONDS)
        expect(page.locator("#send")).to_have_text("Stop")
        page.keyboard.press("Escape")
        expect(page.locator(".facts")).to_contain_text("stopped")
        kept = text.inner_text()
        assert kept
        with httpx.Client(base_url=server.url, timeout=300) as http:
            # The slot is free again: a new request is answered at once, and nothing waits.
            http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).raise_for_status()
            assert http.get("/health").json()["running"] == 0
        page.unroute("**/v1/chat/completions")
        choose(page, max_tokens="5")
        page.get_by_role("button", name="Go on where it was cut").click()
        done(page)
        assert (page.locator(".answer > .body").inner_text()).startswith(kept[:40])
        context.close()
        assert watch.problems == []


def test_again_keeps_both_answers(page: Page) -> None:
    choose(page, temperature="1", seed="1", max_tokens="24")
    ask(page, "Hello")
    text = page.locator(".answer > .body")
    first = text.inner_text()
    page.keyboard.press("Alt+r")
    expect(page.locator(".answer .tools")).to_contain_text("2 of 2", timeout=SECONDS)
    done(page)
    second = text.inner_text()
    assert second != first
    page.get_by_role("button", name="The version before").click()
    expect(text).to_have_text(first, use_inner_text=True)
    page.get_by_role("button", name="The next version").click()
    expect(text).to_have_text(second, use_inner_text=True)


def test_the_lens_colours_the_same_text(page: Page) -> None:
    def drafted_for_sure(route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        body["speculation"]["drafters"] = "ngram,model:p_min=0"
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", drafted_for_sure)
    choose(page, temperature="0", max_tokens="120")
    ask(page, f"Repeat this:\n{CODE * 3}")
    body = page.locator(".answer > .body")
    plain = body.evaluate("e => e.textContent")
    expect(page.locator(".drafted")).to_have_count(0)
    page.keyboard.press("Alt+l")
    expect(page.locator("#lens")).to_have_attribute("aria-pressed", "true")
    drafted = body.locator(".drafted")
    expect(drafted.first).to_be_visible()
    assert body.evaluate("e => e.textContent") == plain
    coloured = {title.removeprefix("guessed by ") for title in drafted.evaluate_all("l => l.map(e => e.title)")}
    shown = set(page.locator(".legend .drafted").all_inner_texts())
    assert coloured <= shown
    # Each drafter has a colour of its own, which is not the page's.
    colours = drafted.evaluate_all("l => [...new Set(l.map(e => e.title + getComputedStyle(e).backgroundColor))]")
    assert len(colours) == len(coloured) and not any("rgba(0, 0, 0, 0)" in c for c in colours)


def test_it_asks_for_the_key(browser: Browser) -> None:
    with background(api_keys=("secret",), draft=False, warm=False) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        for key, keep in (("wrong", False), ("schlüssel", False), ("secret", True)):
            expect(page.locator("#key-dialog")).to_be_visible()
            page.fill("#key", key)
            page.locator("#keep-key").set_checked(keep)
            page.press("#key", "Enter")
        expect(page.locator("#model")).to_have_value(MODEL)
        expect(page.locator("#key-dialog")).to_be_hidden()
        choose(page, max_tokens="5")
        ask(page, "Hello")
        expect(page.locator(".error")).to_be_hidden()
        again = context.new_page()
        again.goto(server.url)
        expect(again.locator("#model")).to_have_value(MODEL)
        context.close()


def test_a_server_that_is_gone_is_said(browser: Browser, server: Background) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    page.route("**/v1/chat/completions", lambda route: route.abort())
    choose(page, max_tokens="5")
    ask(page, "Hello")
    expect(page.locator(".error")).to_contain_text("cannot be reached")
    page.unroute("**/v1/chat/completions")
    choose(page, max_tokens="5", top_p="1", top_k="-1")
    page.get_by_role("button", name="Answer again").click()
    done(page)
    expect(page.locator(".error")).to_be_hidden()
    page.fill("#input", "word " * 3000)
    page.press("#input", "Enter")
    done(page)
    expect(page.locator(".error").last).to_contain_text("token")  # the context is too short, in the server's words
    context.close()


def test_edit_delete_and_undo(page: Page) -> None:
    choose(page, max_tokens="5")
    ask(page, "One")
    page.get_by_role("button", name="Edit, in a new conversation").click()
    expect(page.locator("#input")).to_have_value("One")
    expect(page.locator(".message")).to_have_count(0)
    ask(page, "Two")
    names = page.locator("#list .name")
    expect(names).to_have_text(["Two", "One"])
    page.get_by_role("button", name="Delete One").click()
    expect(names).to_have_text(["Two"])
    page.get_by_role("button", name="Undo").click()
    expect(names).to_contain_text(["One"])
    expect(page.locator(".user")).to_contain_text("One")
    page.fill("#search", "two")
    expect(names).to_have_text(["Two"])


def test_reasoning_is_folded(page: Page) -> None:
    page.evaluate(
        """async () => {
          const { Store, fresh, emptyVersion } = await import("./page/store.js");
          const version = { ...emptyVersion("m"), text: "The answer.", reasoning: "A thought.", seconds: 3 };
          const answer = { role: "assistant", versions: [version], at: 0 };
          const messages = [{ role: "user", text: "Why?" }, answer];
          await (await Store.open()).put({ ...fresh(), title: "Kept", messages });
        }"""
    )
    page.reload()
    page.get_by_role("button", name="Kept", exact=True).click()
    expect(page.locator(".reasoning summary")).to_have_text("Reasoned for 3.0 s")
    expect(page.get_by_text("A thought.")).to_be_hidden()
    page.locator(".reasoning summary").press("Enter")
    expect(page.get_by_text("A thought.")).to_be_visible()


def test_reasoning_comes_apart_from_the_answer(browser: Browser) -> None:
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
    with background(draft=False, warm=False, chat_template=template + "{# </think> #}") as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        choose(page, max_tokens="12")
        ask(page, "Hello")
        # It never came to an answer, so what there is is shown.
        expect(page.locator(".reasoning .body")).to_contain_text(re.compile(r"\w"))
        expect(page.locator(".answer > .body")).to_be_empty()
        context.close()


def test_light_dark_and_phone(page: Page) -> None:
    def background_of() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    light = background_of()
    page.emulate_media(color_scheme="dark")
    assert background_of() != light
    choose(page, theme="light", max_tokens="5")
    assert background_of() == light
    page.reload()
    assert background_of() == light
    page.set_viewport_size({"width": 320, "height": 600})
    ask(page, "Hello " + "x" * 300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    for name in ("#input", "#send", "#lens", "#settings", "#model"):
        box = page.locator(name).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 320
    expect(page.locator("#new")).to_be_hidden()
    page.locator("#open-side").press("Enter")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#new")).to_be_hidden()


def test_everything_is_reached_by_keyboard(page: Page) -> None:
    choose(page, max_tokens="5")
    ask(page, "Hello")
    page.locator("#input").press("Shift+Enter")
    expect(page.locator("#input")).to_have_value("\n")
    page.locator("#input").fill("")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"input", "send", "model", "lens", "settings", "new", "search", "title", "Copy", "Again", "Edit"} <= reached
    page.locator("#lens").focus()
    page.keyboard.press("/")
    expect(page.locator("#input")).to_be_focused()


# ---------------------------------------------------------------- Markdown

RENDER = """async ([text, runs]) => {
  const [{ Document }, { Tint }] = await Promise.all([import("./page/markdown.js"), import("./page/inline.js")]);
  const box = document.createElement("div");
  new Document(box).update(text, runs && new Tint(runs));
  for (const head of box.querySelectorAll(".code-head")) head.remove();
  return box.innerHTML;
}"""
CASES = {
    "a **b** _c_ ~~d~~ `e *f*`": "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e *f*</code></p>",
    "snake_case_name 2 * 3 * 4": "<p>snake_case_name 2 * 3 * 4</p>",
    "***both*** and *a **b** c*": "<p><em><strong>both</strong></em> and <em>a <strong>b</strong> c</em></p>",
    "# One\n\n### Two ##\ntext": "<h1>One</h1><h3>Two</h3><p>text</p>",
    "- a\n- b\n  - c\n\ntext": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>text</p>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "> a\n> b\n\nc": "<blockquote><p>a\nb</p></blockquote><p>c</p>",
    "a  \nb\\\nc": "<p>a<br>b<br>c</p>",
    "---": "<hr>",
    "\\*a\\* &lt;b&gt; &amp;": "<p>*a* &lt;b&gt; &amp;</p>",
    "```python\nx < 1\n\n*y*\n```\nz": '<div class="code"><pre tabindex="0"><code>x &lt; 1\n\n*y*</code></pre></div>'
    "<p>z</p>",
    "```\nnot closed": '<div class="code"><pre tabindex="0"><code>not closed</code></pre></div>',
    "|a|b|\n|-|-:|\n|`1\\|2`|3|": '<div class="table" tabindex="0"><table><thead>'
    '<tr><th>a</th><th class="right">b</th></tr>'
    '</thead><tbody><tr><td><code>1\\|2</code></td><td class="right">3</td></tr></tbody></table></div>',
}


@pytest.mark.parametrize("text", CASES)
def test_markdown(renderer: Page, text: str) -> None:
    assert renderer.evaluate(RENDER, [text, None]) == CASES[text]


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](  JaVaScRiPt:alert(1) )",
        "[a](data:text/html,<script>alert(1)</script>)",
        "<javascript:alert(1)>",
        '[a](https://example.org/"onclick=alert(1)//)',
        "![a](https://example.org/x.png)",
        "`<b>`",
        "```<b onclick=x>\n</code></pre><script>alert(1)</script>\n```",
        "| <b> |\n|---|\n| <script>x</script> |",
        "&#60;script&#62;alert(1)&#60;/script&#62;",
    ],
)
def test_hostile_markdown_stays_text(renderer: Page, text: str) -> None:
    html = renderer.evaluate(RENDER, [text, None])
    assert not re.search(r"<(script|img|b|iframe|object|svg)\b", html)
    for tag in re.findall(r"<[^>]*>", html):
        assert not re.search(r"\son\w+=", tag), tag
        for address in re.findall(r"href=\"([^\"]*)", tag):
            assert address.startswith(("https://example.org", "mailto:"))


FUZZ = """async () => {
  const [{ Document }, { Tint }] = await Promise.all([import("./page/markdown.js"), import("./page/inline.js")]);
  let seed = 7;
  const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
  const parts = ["*", "**", "_", "`", "```\\n", "\\n", "\\n\\n", "- ", "1. ", "> ", "  ", "    ", "|",
    "|-|-|", "a", "b c", "[", "](", "https://x.y/z", ")", "~~", "\\\\", "&amp;", "#", "# ", "<br>", "<b>", "\\t", "😀",
    "---", "[x] "];
  const wrong = [];
  for (let round = 0; round < 1500 && wrong.length < 3; round++) {
    const [grown, whole, tinted] = ["div", "div", "div"].map((n) => document.createElement(n));
    const growing = new Document(grown);
    const runs = [];
    let text = "";
    for (let i = random(24) + 1; i > 0; i--) {
      const part = parts[random(parts.length)];
      text += part;
      runs.push([part.length, [null, "ngram", "model"][random(3)]]);
      growing.update(text, null);
    }
    new Document(whole).update(text, null);
    new Document(tinted).update(text, new Tint(runs));
    const marks = tinted.querySelectorAll("span.drafted");
    for (const mark of marks) mark.replaceWith(...mark.childNodes);
    tinted.normalize();
    whole.normalize();
    grown.normalize();
    const same = grown.innerHTML === whole.innerHTML && tinted.innerHTML === whole.innerHTML;
    if (!same) wrong.push([text, whole.innerHTML]);
  }
  return wrong;
}"""


def test_growing_text_and_tints_show_the_same(renderer: Page) -> None:
    assert renderer.evaluate(FUZZ) == []


def test_tints_are_where_their_characters_are(renderer: Page) -> None:
    html = renderer.evaluate(RENDER, ["- a **bcd**\n- `ef`", [[5, None], [2, "ngram"], [9, "model"], [2, None]]])
    found = [re.sub("<[^>]*>", "", m) for m in re.findall(r"<span[^>]*>(.*?)</span>", html)]
    assert found == ["b", "cd", "e"], html


@pytest.mark.parametrize(
    "part", ["*a ", "[", "[a](", "`", "``a`", "**a _b ", "> ", "- ", "|", "(", "https://x.y/)", "&", "<", "1. - "]
)
def test_hostile_length_does_not_freeze_the_page(renderer: Page, part: str) -> None:
    renderer.evaluate(RENDER, [part * (60_000 // len(part)), None])
