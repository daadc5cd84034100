"""Registers the components of arcforge-hw. Imports nothing heavy."""

from __future__ import annotations

from arcforge_core.plugins.table import hooks

COMPONENTS = {
    "hardware": {
        "cpu": ("cpu.backend:Cpu", "configs:CpuConfig", "CPU with C++ and tiled kernels"),
        "cuda": ("cuda.backend:Cuda", "configs:CudaConfig", "NVIDIA GPUs with kernels in Triton"),
        "ascend": ("ascend.backend:Ascend", "configs:AscendConfig", "Huawei's Ascend NPUs (npu); none was at hand"),
        "moore_threads": ("moore_threads.backend:MooreThreads", "configs:MooreThreadsConfig",
            "Moore Threads' GPUs (musa); none was at hand"),
        "cambricon": ("cambricon.backend:Cambricon", "configs:CambriconConfig",
            "Cambricon's MLUs (mlu); none was at hand"),
        "enflame": ("enflame.backend:Enflame", "configs:EnflameConfig", "Enflame's GCUs (gcu); none was at hand"),
        "hygon": ("hygon.backend:Hygon", "configs:HygonConfig", "Hygon's DCUs (cuda); none was at hand"),
        "metax": ("metax.backend:Metax", "configs:MetaxConfig", "MetaX's GPUs (cuda); none was at hand"),
        "kunlunxin": ("kunlunxin.backend:Kunlunxin", "configs:KunlunxinConfig",
            "Kunlunxin's XPUs (cuda); none was at hand"),
    },
    "quantizer": {
        "quarot": ("quantization.quarot:Quarot", "quantization.configs:QuarotConfig",
            "Folds, rotations and integers, without calibration text"),
        "calibrated": ("quantization.calibrated:Calibrated", "quantization.configs:CalibratedConfig",
            "Folds, rotations, smoothing and integers, fitted to calibration text"),
    },
    "suite": {
        "quantization": ("quantization.report.command:measure_quantization",
            "quantization.configs:QuantizationSuiteConfig", "Ways to quantise a checkpoint, on held-out text"),
    },
}  # fmt: skip
"""Kind -> name -> target, schema and summary; import strings are relative to the package."""

JOBS = {
    "quantize": ("quantization.command:run", "quantization.configs:QuantizeConfig", "arcforge-quantize"),
    "plan": ("planner.command:run", "planner.configs:PlanConfig", "arcforge-plan"),
}
"""Name -> function, schema and script."""

arcforge_plugin_api, arcforge_config_sources, arcforge_register_components = hooks("arcforge_hw", COMPONENTS, JOBS)
