"""The final figures of a run, in ``summary.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.data.tokens.pipeline import Corpus
from arcforge_core.eval.compression import compression_baselines
from arcforge_core.files.rundir import write_json
from arcforge_core.model.params import count_parameters
from arcforge_core.train.callbacks.generation import figures_of
from arcforge_core.train.callbacks.threads import Threads
from arcforge_core.train.callbacks.throughput import ThroughputMetrics
from arcforge_core.train.module import LanguageModelModule

HEADLINE = (
    "bits_per_byte",
    "gzip_bits_per_byte",
    "xz_bits_per_byte",
    "functions_rate_before",
    "functions_rate",
    "mtp_accept_length_generated",
    "mtp_accept_length_text",
    "generation_exact_before",
    "generation_exact",
)
MTP_ACCEPTANCE = "mtp_acceptance.json"


@dataclass
class Summary:
    """Collects the figures from the objects that measured them."""

    run_dir: Path
    module: LanguageModelModule
    metrics: ThroughputMetrics
    threads: Threads
    corpus: Corpus

    def write(self, status: str) -> dict[str, float | str]:
        """Writes and returns the measured figures."""
        progress, config = self.module.progress, self.module.config
        counts = count_parameters(config.model, config.attention)
        figures: dict[str, float | str] = {
            "status": status,
            "steps": progress.step,
            "tokens": progress.tokens,
            "seconds": progress.seconds,
            "parameters": counts.total_with_mtp,
            "active_parameters": counts.active,
            "matmul_flops": self.metrics.peak_flops,
            **self.metrics.averages(),
            **self.threads.figures(),
        }
        row = self.metrics.last_row
        figures |= {name: row[name] for name in row if name.endswith("loss") or "mtp_loss" in name}
        heldout = self.module.heldout
        if heldout is not None:
            figures |= {"bits_per_byte": heldout.bits_per_byte, "heldout_loss": heldout.loss}
        if status == "finished":
            for name, bits in compression_baselines(self.corpus.heldout_bytes()).items():
                figures[f"{name}_bits_per_byte"] = bits
        functions = self.run_dir / "functions.json"
        if functions.exists():
            content = json.loads(functions.read_text())
            names = {"before": "functions_rate_before", "after": "functions_rate"}
            figures |= {names[when]: report["rate"] for when, report in content.items()}
        acceptance = self.run_dir / MTP_ACCEPTANCE
        if acceptance.exists():
            figures |= json.loads(acceptance.read_text())
        figures |= figures_of(self.run_dir)
        write_json(self.run_dir / "summary.json", figures)
        return figures
