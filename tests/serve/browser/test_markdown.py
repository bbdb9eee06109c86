"""Answers in Markdown: its blocks as elements, each token still one that can be pointed at, and nothing that runs."""

from __future__ import annotations

import pytest

RENDER = """async (source) => {
    const { markdown } = await import("/page/markdown.js");
    const places = [];
    const box = document.createElement("div");
    box.append(...markdown(source, (start, end) => (places.push([start, end]), [source.slice(start, end)])));
    for (const button of box.querySelectorAll("button")) button.remove();
    return [box.innerHTML.replace(/ (class|target|rel|title|tabindex|role|aria-label)="[^"]*"/g, ""), places];
}"""


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("a **b *c* d** `e*` ~~f~~", "<p>a <strong>b <em>c</em> d</strong> <code>e*</code> <s>f</s></p>"),
        ("2*3*4 snake_case_name **open \\*", "<p>2*3*4 snake_case_name **open *</p>"),
        ("# One\ntwo\n\nthree", "<h4>One</h4><p>two\n</p><p>three</p>"),
        ("- a\n- b\n  more\n  1. c", "<ul><li>a\n</li><li>b\nmore\n<ol start=\"1\"><li>c</li></ol></li></ul>"),
        ("3. a\n\n4. b", '<ol start="3"><li>a\n</li><li>b</li></ol>'),
        ("> a\n> b\n---\nc", "<blockquote><p>a\nb\n</p></blockquote><hr><p>c</p>"),
        ("```py\n*x* <b>\n```", "<div><div><span>py</span></div><pre><code>*x* &lt;b&gt;\n</code></pre></div>"),
        ("```\nopen", "<div><div><span></span></div><pre><code>open</code></pre></div>"),
        (
            "|a|b|\n|-|-|\n||**c**|",
            "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
            "<tbody><tr><td></td><td><strong>c</strong></td></tr></tbody></table></div>",
        ),
        ("[a](https://x.example/b_c)", '<p><a href="https://x.example/b_c">a</a></p>'),
        ("[a](javascript:alert(1)) ![b](https://x.example/c.png)", "<p>[a](javascript:alert(1)) !"),
        ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
    ],
)  # fmt: skip
def test_what_becomes_of_it(page, source, html):
    shown, places = page.evaluate(RENDER, source)
    assert shown.startswith(html) and "<img" not in shown and 'href="javascript' not in shown
    assert all(start < end <= len(source) for start, end in places if start != end)
    assert places == sorted(places), "each piece of text comes once, in order"


@pytest.mark.parametrize("part", ["**a", "_a ", "[", ">", "- ", "`a``", "|-", "*", "    - x\n"])
def test_hostile_nesting_ends(page, part):
    shown, _ = page.evaluate(RENDER, part * (20_000 // len(part)))
    assert shown


def test_tokens_of_markdown_can_be_pointed_at(page, stub, ask, expect):
    stub.answer = "Some **bold words** here:\n\n```python\nx = 1\n```\n\n- one item"
    turn = ask(page, "Tell me")
    expect(turn.locator("strong")).to_have_text("bold words")
    expect(turn.locator("pre")).to_have_text("x = 1")
    expect(turn.locator(".answer li")).to_have_text("one item")
    token = turn.locator("strong [data-token]").first
    token.click()
    expect(turn.locator("h4")).to_contain_text("by “**bold”")
    expect(token).to_have_class("on")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    turn.get_by_role("button", name="Copy code").click()
    expect(page.get_by_role("status")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1"
    turn.get_by_role("button", name="Copy", exact=True).click()
    expect(turn.get_by_role("button", name="Copied")).to_have_count(2)
    assert page.evaluate("navigator.clipboard.readText()") == stub.answer
