"""A pytest plugin: figures that replace measurements of the processor in tests.

``pytest --calibration float32`` and ``--calibration bfloat16`` are opposite: both sides of each choice can be tested on
any machine. By default they are measured, as in runs.
"""

import os

VARIABLE = "ARCFORGE_CALIBRATION"
FORCED = {
    "float32": "bf16=1e11,fp32=3e11,fp32_expert_rows=1e9,fp32_rows=0,int8=1e9,int8_in_fp32=1e11,"
    "pairs=1e9,wide_pairs=1e11",
    "bfloat16": "bf16=3e11,fp32=1e11,fp32_expert_rows=0,fp32_rows=1e9,int8=1e11,int8_in_fp32=1e9,"
    "pairs=1e11,wide_pairs=1e9",
    "measured": "",
}


def pytest_addoption(parser):
    parser.addoption("--calibration", choices=FORCED, default="measured", help="figures instead of measurements")


def pytest_configure(config):
    """Sets the variable for this process and those that it starts; one that the caller has set stays."""
    if figures := FORCED[config.getoption("--calibration")]:
        os.environ.setdefault(VARIABLE, figures)
