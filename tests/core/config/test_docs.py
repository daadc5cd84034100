from dataclasses import dataclass

from arcforge_core.config.docs import field_docs


@dataclass
class Base:
    first: int = 1
    """About the first."""
    second: int = 2


@dataclass
class Derived(Base):
    """Adds one."""

    first: int = 4
    third: int = 3
    """Over
    two lines."""


def test_texts_below_fields_are_found_in_all_bases():
    assert field_docs(Derived) == {"first": "About the first.", "second": "", "third": "Over two lines."}
