"""The experts that an engine chose, as plain data. P: positions; L: layers with experts; K: experts per token."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Experts = NDArray[Any]
"""Numbers of the experts of consecutive positions, [P, L, K], uint8 or int16."""
DTYPES = ("uint8", "int16")


def dtype_of(experts: int) -> str:
    """Returns the smallest type for the numbers of this many experts."""
    return "uint8" if experts <= 256 else "int16"


def experts_json(experts_PLK: Experts) -> dict[str, Any]:
    """Returns an array for JSON: shape, dtype and the little-endian bytes in base64."""
    little = np.ascontiguousarray(experts_PLK, experts_PLK.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"shape": list(experts_PLK.shape), "dtype": experts_PLK.dtype.name, "data": data}


def experts_of(given: Mapping[str, Any]) -> Experts:
    """Returns the array of `experts_json`.

    Raises:
        ValueError: the data are not those of such an array.
    """
    shape, dtype = given.get("shape"), given.get("dtype")
    if dtype not in DTYPES or not isinstance(shape, list) or len(shape) != 3:
        raise ValueError(f"experts must have three dimensions and the dtype {' or '.join(DTYPES)}: {shape}, {dtype}")
    try:
        data = base64.b64decode(str(given.get("data")), validate=True)
        found = np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"experts of shape {shape} and {dtype} cannot be read: {error}") from error
    return found.astype(dtype)
