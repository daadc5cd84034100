"""Properties of CSS: those that decks may use, and the rules that refuse others."""

from __future__ import annotations

from collections.abc import Sequence

from tinycss2.ast import Node

from arcforge_rl.slides.dialect import ACCEPTED, FAMILIES, MARKS
from arcforge_rl.slides.values import Refused

REFUSED = {
    "hidden_overflow": ("overflow", "text-overflow", "line-clamp", "-webkit-line-clamp", "-webkit-box-orient", "max-",
                        "block-overflow", "white-space", "contain"),
    "clipped": ("clip", "mask", "-webkit-mask", "shape-", "border-image"),
    "zoom": ("zoom", "text-size-adjust", "-webkit-text-size-adjust", "font-size-adjust", "object-"),
    "not_16_9": ("aspect-ratio",),
    "transform": ("transform", "-webkit-transform", "scale", "rotate", "translate", "perspective", "offset", "motion"),
    "hidden_text": ("visibility", "content-visibility", "backface-visibility", "color-scheme", "forced-color-adjust"),
    "generated_text": ("content", "counter-", "quotes"),
    "blended": ("filter", "backdrop-filter", "-webkit-filter", "mix-blend-mode", "background-blend-mode", "isolation",
                "-webkit-text-", "text-shadow", "background-clip", "-webkit-background-clip", "-webkit-box-reflect"),
    "animation": ("animation", "transition", "-webkit-animation", "-webkit-transition", "scroll-", "view-",
                  "will-change"),
    "turned_text": ("direction", "unicode-bidi", "writing-mode", "text-orientation", "vertical-align"),
    "computed_value": ("--", "all"),
    "unmeasured_layout": ("flex", "grid", "gap", "row-gap", "column", "float", "clear", "align-", "justify-", "order",
                          "place-", "inset", "right", "bottom", "min-", "anchor", "position-"),
    "remote_load": ("cursor", "src", "list-style-image"),
}  # fmt: skip
"""Rule -> properties that it refuses; one that ends in a hyphen refuses all that begin with it, every other one those
that continue with a hyphen too."""
HARMLESS = {
    "overflow": ("visible",), "overflow-x": ("visible",), "overflow-y": ("visible",), "visibility": ("visible",),
    "white-space": ("normal",), "transform": ("none",), "zoom": ("1", "normal"), "float": ("none",),
    "direction": ("ltr",), "writing-mode": ("horizontal-tb",), "clip-path": ("none",), "filter": ("none",),
    "max-width": ("none",), "max-height": ("none",), "text-shadow": ("none",),
}  # fmt: skip
"""Values that equal the default."""
DISPLAYS = ("block", "inline", "list-item")
POSITIONS = ("static", "relative", "absolute")
WIDEST_BORDER = 12.0
DEEPEST_SHADOW = 40.0


def refusal(name: str, tokens: Sequence[Node]) -> Refused | None:
    """Returns why a declaration may not be used; None if it may, as far as its own tokens show."""
    said = " ".join(token.serialize() for token in tokens)
    what = f"{name}: {said}"[:80]
    if any(map(_loads, tokens)):
        return Refused("remote_load", what)
    if name in HARMLESS and said.lower() in HARMLESS[name]:
        return None
    for rule, names in REFUSED.items():
        if any(name == one or name.startswith(one if one.endswith("-") else f"{one}-") for one in names):
            return Refused(rule, what)
    if name not in ACCEPTED:
        return Refused("unknown_property", what)
    if not tokens:
        return Refused("malformed_css", f"{name} has no value")
    if any(token.type == "function" and token.lower_name in ("var", "env", "attr", "calc") for token in tokens):
        return Refused("computed_value", what)
    word = tokens[0].lower_value if tokens[0].type == "ident" else ""
    if word in ("inherit", "initial", "unset", "revert", "revert-layer"):
        return Refused("computed_value", what)
    if name == "display" and word == "none":
        return Refused("hidden_text", what)
    if name == "display" and (word not in DISPLAYS or len(tokens) > 1):
        return Refused("unmeasured_layout", what)
    if name == "position" and (word not in POSITIONS or len(tokens) > 1):
        return Refused("unmeasured_layout", what)
    if name == "text-decoration" and (word not in ("none", "underline") or len(tokens) > 1):
        return Refused("covered_text", f"{what}: a line through text")
    if name.startswith("list-style") and any(one.type != "ident" or one.lower_value not in MARKS for one in tokens):
        return Refused("generated_text", what)
    if name == "font-family" and (strange := [one for one in _families(tokens) if one not in FAMILIES]):
        return Refused("unknown_property", f"font-family: {strange[0]}"[:80])
    return _shadow(what, tokens) if name == "box-shadow" else None


def _families(tokens: Sequence[Node]) -> list[str]:
    names = [""]
    for token in tokens:
        if token == ",":
            names.append("")
        else:
            word = str(token.lower_value) if token.type == "ident" else str(getattr(token, "value", "?")).lower()
            names[-1] = f"{names[-1]} {word}".strip()
    return names


def _loads(token: Node) -> bool:
    if token.type == "url":
        return True
    if token.type != "function":
        return False
    return token.lower_name in ("url", "image-set", "-webkit-image-set", "image", "element", "paint", "src") or any(
        map(_loads, token.arguments)
    )


def _shadow(what: str, tokens: Sequence[Node]) -> Refused | None:
    """Shadows are soft and small, so that none paints over what lies beside it."""
    sizes = [abs(token.value) for token in tokens if token.type in ("dimension", "number")]
    alphas = [token for token in tokens if token.type == "function" and token.lower_name in ("rgb", "rgba")]
    faint = [_alpha(token) <= 0.4 for token in alphas]
    plain = len(tokens) == 1 and tokens[0].type == "ident" and tokens[0].lower_value == "none"
    small = max(sizes, default=0.0) <= DEEPEST_SHADOW and len(sizes) in (2, 3) and len(tokens) == len(sizes) + 1
    if plain or (small and faint == [True]):
        return None
    return Refused(
        "unknown_property", f"{what}: a shadow has two or three lengths of at most 40 px, and rgba(...) to 0.4"
    )


def _alpha(token: Node) -> float:
    numbers = [one for one in token.arguments if one.type in ("number", "percentage")]
    if len(numbers) != 4:
        return 1.0
    return float(numbers[3].value) / (100 if numbers[3].type == "percentage" else 1)
