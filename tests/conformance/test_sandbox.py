"""Runs the sandbox suite over every backend that the registry lists; one that cannot work here must refuse."""

import pytest

from arcforge_core.plugins.loader import registry
from arcforge_core.testing import SandboxSuite


class TestEverySandbox(SandboxSuite):
    @pytest.fixture(scope="class", params=registry().names("sandbox"))
    def make_backend(self, request):
        component = registry().get("sandbox", request.param)
        return lambda: component.load()(component.load_schema()())
