import pytest

from support.trees import write_files

CODE = '''"""Small numbers."""


def clamp(value, low, high):
    """Returns a value within bounds."""
    if low > high:
        raise ValueError("low must not be above high")
    if value < low:
        return low
    if value > high:
        return high
    return value


def digits(number):
    """Returns the sum of digits."""
    total = 0
    while number > 0:
        total = total + number % 10
        number = number // 10
    return total
'''
TESTS = """import pytest

from toy import clamp, digits


@pytest.mark.parametrize(("value", "wanted"), [(1, 2), (5, 5), (9, 8)])
def test_clamp(value, wanted):
    assert clamp(value, 2, 8) == wanted


def test_digits():
    assert digits(123) == 6


def test_no_digits():
    assert digits(0) == 0
"""


@pytest.fixture
def repository(tmp_path):
    """A repository with passing tests, history and caches."""
    files = {
        "toy/__init__.py": CODE,
        "tests/test_toy.py": TESTS,
        ".git/objects/aa": CODE,
        "toy/__pycache__/toy.pyc": CODE,
    }
    return write_files(tmp_path / "toy", files)
