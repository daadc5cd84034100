"""Torch builds of four vendors that all call their devices cuda; versions are those of the vendors' own packages."""

import pytest

from arcforge_hw.cuda.vendors import other_vendor


@pytest.mark.parametrize(
    ("version", "attributes", "distributions", "hip", "vendor"),
    [
        ("2.13.0+cu129", (), (), False, ""),
        ("2.13.0", ("cuda",), (), False, ""),
        ("2.9.0+das.opt1.dtk2604", (), (), True, "hygon"),
        ("2.9.0", ("__hcu_version__",), (), True, "hygon"),
        ("2.10.0+metax3.8.1.0", (), (), False, "metax"),
        ("2.9.0+cu129", (), ("torch-xray",), False, "kunlunxin"),
        ("2.9.0+rocm6.4", (), (), True, "amd"),
    ],
)
def test_the_vendor_of_a_torch_build(version, attributes, distributions, hip, vendor):
    assert other_vendor(version, attributes, distributions, hip).split(":")[0] == vendor
