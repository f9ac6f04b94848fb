"""Protocol names and NumPy types match one to one."""

import numpy as np
import pytest

from inferway.protocol import DTYPES, Tensor, datatype_of


@pytest.mark.parametrize("name", DTYPES)
def test_names_and_types_are_inverse(name: str) -> None:
    assert datatype_of(DTYPES[name]) == name
    assert Tensor("x", name, (-1,)).dtype == DTYPES[name]


def test_no_name_for_complex_numbers() -> None:
    with pytest.raises(KeyError):
        datatype_of(np.dtype(np.complex64))
