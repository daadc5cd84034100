"""The schema of the CPU backend."""

from arcforge_core.plugins.loader import registry


def test_cpu_is_registered_with_its_schema():
    component = registry().get("hardware", "cpu")
    assert component.load_schema()().name == component.load().name == "cpu"
