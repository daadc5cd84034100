"""Components that a benchmark adds to the process, for one test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from arcforge_core.config import compose, fields
from arcforge_core.plugins.loader import registry


def _forget() -> None:
    """Forgets which components there were when this process first composed a configuration."""
    compose.store_components.cache_clear()
    fields._all_paths.cache_clear()


@contextmanager
def registered(register: Callable[[], None], *environments: str) -> Iterator[None]:
    """Registers environments, and removes them again: other tests list what there is."""
    _forget()
    register()
    try:
        yield
    finally:
        for name in environments:
            del registry().claims["environment", name]
            compose.ConfigStore.instance().repo["environment"].pop(f"{name}.yaml", None)
        _forget()
