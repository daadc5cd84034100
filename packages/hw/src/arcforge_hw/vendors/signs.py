"""The signs of each vendor's chips, as data. Sources are public packages, plug-ins and texts pasted in public issues.

A tool's name proves nothing: ``mx-smi`` also exists for Moffett's cards and ``xpu-smi`` for Intel's. Compilers and
libraries prove nothing either: three of the seven ship CUDA's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arcforge_hw.vendors.evidence import Evidence


@dataclass(frozen=True)
class Signs:
    """The signs of one vendor.

    Attributes:
        vendor: its name, also the backend's.
        tool: command line of the driver's tool that lists devices.
        model: a pattern of a device's name in the tool's output; its first group is the name.
        distributions: packages, one of which torch needs for the chip; none if torch itself is the vendor's build.
        version: a pattern of the local part of such a torch's version, e.g. ``2.10.0+metax3.8.1.0``.
        attribute: an attribute of the module torch that the vendor's build adds.
        nodes: patterns of device nodes that only this vendor has.
        shared_nodes: patterns of nodes that other vendors have too; they count together with a toolkit.
        toolkits: patterns of folders of the vendor's toolkit.
    """

    vendor: str
    tool: str
    model: str
    distributions: tuple[str, ...] = ()
    version: str = ""
    attribute: str = ""
    nodes: tuple[str, ...] = ()
    shared_nodes: tuple[str, ...] = ()
    toolkits: tuple[str, ...] = ()

    def devices(self, machine: Evidence) -> str:
        """Returns the devices of this vendor with the evidence for them, or an empty string."""
        names = re.findall(self.model, machine.tools.get(self.tool, ""))
        if names:
            kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
            return f"{kinds} ({self.tool})"
        if nodes := machine.matching(self.nodes):
            return f"{len(nodes)} device nodes such as {nodes[0]}"
        shared, toolkits = machine.matching(self.shared_nodes), machine.matching(self.toolkits)
        return f"{shared[0]} and {toolkits[0]}" if shared and toolkits else ""

    def software(self, machine: Evidence) -> str:
        """Returns the package that makes torch use the devices, or an empty string."""
        torch = machine.distributions.get("torch", "")
        if self.version and re.search(self.version, torch):
            return f"torch {torch}"
        return next((f"{n} {machine.distributions[n]}" for n in self.distributions if n in machine.distributions), "")

    def wanted(self) -> str:
        """Returns the packages of which one is needed, in words."""
        return " or ".join(self.distributions) or f"the vendor's own build of torch (version {self.version})"


SIGNS: dict[str, Signs] = {
    sign.vendor: sign
    for sign in (
        Signs("ascend", "npu-smi info", r"(?m)^\| *\d+ +((?:Ascend)?\d{3}\w*(?:-\d+)?) +\|", ("torch-npu",),
              nodes=("/dev/davinci[0-9]*",), toolkits=("/usr/local/Ascend/ascend-toolkit/latest",)),
        Signs("moore_threads", "mthreads-gmi", r"(?m)^\d+ +(MTT S\d+)", ("torch-musa",), r"\+musa",
              nodes=("/dev/mtgpu*",), toolkits=("/usr/local/musa*",)),
        Signs("cambricon", "cnmon", r"\b(MLU\d{3}\S*)", ("torch-mlu",),
              nodes=("/dev/cambricon_dev*",), toolkits=("/usr/local/neuware",)),
        Signs("enflame", "efsmi", r"\b([SLT]\d{2,3})\b", ("torch-gcu",),
              nodes=("/dev/gcu[0-9]*",), toolkits=("/opt/tops",)),
        Signs("hygon", "hy-smi --showproductname --json", r'"Card Series": "([^"]+)"', (), r"\+das|dtk\d",
              "__hcu_version__", shared_nodes=("/dev/kfd",), toolkits=("/opt/dtk*",)),
        Signs("metax", "mx-smi", r"\b(?:MX|MetaX )(C\d{3}\w*(?:-\w+)?)", (), r"\+metax",
              shared_nodes=("/dev/dri",), toolkits=("/opt/maca",)),
        Signs("kunlunxin", "xpu-smi", r"(?m)^\| +\d+ +([PR]\d{3}\S* (?:OAM|PCIe|VF)?)",
              ("torch-xmlir", "xmlir", "torch-xray"), nodes=("/dev/xpu[0-9]*",),
              toolkits=("/usr/local/xpu", "/usr/local/xcudart")),
    )
}  # fmt: skip
"""By vendor. No source states the nodes of Moore Threads, Cambricon and Enflame; they are as remembered. Of the tools
of Cambricon, Enflame and MetaX no output was at hand."""
