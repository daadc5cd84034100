import re
import sys
from types import SimpleNamespace

import pytest

from arcforge_core import __version__
from arcforge_core.cli import doctor
from arcforge_core.contracts.hardware import YES, Kernel, Probe
from arcforge_core.contracts.sandbox import SandboxProbe
from arcforge_core.errors import PluginError


def test_every_section_is_there(capsys, monkeypatch):
    monkeypatch.setenv("ARCFORGE_DISPATCH", "reference")
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for line in ("packages", "machine", "hardware backends", "optional", "environment variables", "plugins"):
        assert f"\n{line}\n" in f"\n{out}"
    assert f"arcforge-core       {__version__}" in out
    assert "torch_cpu" in out
    assert "ARCFORGE_DISPATCH  reference" in out


def test_a_package_that_is_absent_says_how_to_get_it():
    assert (
        doctor.version("arcforge-nothing")
        == "not installed: pip install arcforge-nothing, or in a clone pip install ./packages/nothing"
    )


def test_without_a_compiler_it_says_what_is_lost(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    text = doctor.compiler()
    assert text.startswith("no C++ compiler: no-such-compiler not found (install g++ or set CXX)")
    assert "torch's own operators run instead" in text


def test_a_backend_that_cannot_be_loaded_says_why(monkeypatch):
    class Broken:
        def names(self, kind):
            return ["broken"]

        def get(self, kind, name):
            raise PluginError("no such module")

    monkeypatch.setattr(doctor, "registry", Broken)
    assert list(doctor.hardware_rows()) == [("broken", "broken: PluginError: no such module")]


def test_kernels_at_fault_are_listed(monkeypatch):
    def yes(call):
        return YES

    kernels = [
        Kernel("future_op", "acme.future", lambda x: x, yes),
        Kernel("rms_norm", "acme.one", lambda *args: args, yes),
        Kernel("rms_norm", "acme.two", lambda *args: args, yes),
    ]
    acme = SimpleNamespace(probe=lambda: Probe(True, "one chip"), kernels=lambda: kernels)
    component = SimpleNamespace(load=lambda: lambda config: acme, load_schema=lambda: object)
    registered = SimpleNamespace(names=lambda kind: ["acme"], get=lambda kind, name: component)
    monkeypatch.setattr(doctor, "registry", lambda: registered)
    assert list(doctor.hardware_rows()) == [
        ("acme", "usable: one chip"),
        ("", "kernel acme.future is not used: core has no op 'future_op'"),
        (
            "",
            "rms_norm: acme.one and acme.two have the same priority, 0; calls that both support use neither",
        ),
    ]


@pytest.mark.slow(reason="builds the 744B model's modules on the meta device")
def test_the_counts_of_glm5(capsys):
    assert doctor.main(["--params", "model=glm5", "attention=dsa"]) == 0
    out = capsys.readouterr().out
    for line in ("753,864,139,008", "743,911,218,432", "39,881,563,392", "1,408 per layer"):
        assert line in out


def test_an_unknown_preset_is_refused(capsys):
    assert doctor.main(["--params", "model=glm6"]) == 2
    assert "did you mean 'glm5'" in capsys.readouterr().err


def test_sandboxes_of_this_machine(capsys):
    assert doctor.main(["sandbox"]) == 0
    rows = capsys.readouterr().out
    for word in ("Landlock", "bubblewrap", "control groups", "docker", "system-call filter", "user namespaces"):
        assert f"\n  {word} " in rows
    assert re.search(r"bubblewrap +usable: ", rows) or sys.platform != "linux"


def test_sandboxes_that_are_broken_or_absent(monkeypatch):
    class Broken:
        def names(self, kind):
            return ["auto", "strange"]

        def get(self, kind, name):
            raise PluginError("no such module")

    monkeypatch.setattr(doctor, "registry", Broken)
    assert list(doctor.sandbox_rows()) == [("strange", "broken: PluginError: no such module")]
    monkeypatch.setattr(Broken, "names", lambda self, kind: [])
    assert list(doctor.sandbox_rows()) == [("none", "no package brings one: pip install ./packages/rl")]


def test_gaps_of_a_sandbox_are_shown(monkeypatch):
    probe = SandboxProbe(True, "works", ("no bound on memory",), {"kernel": "old"})
    component = SimpleNamespace(
        load=lambda: lambda config: SimpleNamespace(probe=lambda: probe), load_schema=lambda: dict
    )
    monkeypatch.setattr(
        doctor, "registry", lambda: SimpleNamespace(names=lambda kind: ["one"], get=lambda *_: component)
    )
    assert list(doctor.sandbox_rows()) == [("kernel", "old"), ("one", "usable: works"), ("", "gap: no bound on memory")]
