"""The cascade: which declarations an element has."""

from __future__ import annotations

from selectolax.lexbor import SelectolaxError

from arcforge_rl.slides.computed import computed
from arcforge_rl.slides.css import Declaration, declarations, sheet
from arcforge_rl.slides.markup import Element, Markup
from arcforge_rl.slides.rules import Finding
from arcforge_rl.slides.style import ROOT, ROOT_SIZE, Style

MOST_MATCHES = 50_000
"""Declarations times elements that they apply to."""


def cascade(markup: Markup) -> tuple[dict[Element, Style], list[Finding]]:
    """Returns the style of every element of a document, none of a document too large, and the broken rules."""
    assert markup.root is not None
    findings: list[Finding] = []
    matched: dict[Element, list[tuple[tuple[int, int, int, int, int], Declaration]]] = {}
    rules, matches = [], 0
    for one in markup.root.elements():
        if one.tag == "style":
            found, faults = sheet("".join(child for child in one.children if isinstance(child, str)))
            rules += found
            findings += [Finding(fault.rule, None, str(fault)) for fault in faults]
    for rule in rules:
        try:
            nodes = markup.parser.css(rule.selector)
        except SelectolaxError as error:
            findings.append(Finding("selector", None, f"{rule.selector[:60]}: {error}"[:120]))
            continue
        matches += len(nodes) * len(rule.declarations)
        if matches > MOST_MATCHES:
            return {}, [Finding("too_large", None, f"declarations apply more than {MOST_MATCHES:,} times")]
        for node in nodes:
            if (element := markup.by_node.get(node.mem_id)) is not None:
                place = matched.setdefault(element, [])
                place += [((said.important, 0, *rule.specificity), said) for said in rule.declarations]
    styles: dict[Element, Style] = {}
    for element in markup.root.elements():
        own = matched.get(element, [])
        if text := element.attributes.get("style"):
            own += [((one.important, 1, 0, 0, 0), one) for one in declarations(text)]
        chosen: dict[str, Declaration] = {}
        for _, said in sorted(own, key=lambda pair: pair[0]):  # a stable sort keeps the order of the document
            if said.fault is not None:
                findings.append(Finding(said.fault.rule, element.page, f"{said.fault} of {_name(element)}"))
            else:
                chosen[said.name] = said
        above = styles[element.parent] if element.parent is not None else ROOT
        styles[element], refused = computed(element, above, {name: one.tokens for name, one in chosen.items()})
        findings += [Finding(fault.rule, element.page, f"{fault} of {_name(element)}") for fault in refused]
    if styles[markup.root].font.size != ROOT_SIZE:
        findings.append(Finding("unit", None, f"the root has a font size of its own, not {ROOT_SIZE:g} px"))
    return styles, findings


def _name(element: Element) -> str:
    return f"<{element.tag[:20]}{''.join(f'.{name[:20]}' for name in element.classes[:2])}>"
