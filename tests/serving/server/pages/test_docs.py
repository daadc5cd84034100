"""The page that describes the API, in a browser."""


def test_routes_unfold_to_their_fields_and_nothing_is_loaded_from_elsewhere(context, served):
    asked = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.goto(f"{served[1]}/docs")
    chat = page.locator(".route", has_text="/v1/chat/completions").first
    chat.locator("summary").first.click()
    messages = chat.locator("li", has=page.get_by_text("messages", exact=True)).first
    assert "list of ChatMessage" in messages.inner_text()
    messages.locator("summary").first.click()
    messages.get_by_text("tool_call_id", exact=True).first.wait_for()  # unfolds after the click, not in it
    assert all(url.startswith(served[1]) for url in asked) and len(asked) >= 4
