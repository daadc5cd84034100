import pytest

from support.trees import write_files

CODE = """//! Small numbers.

/// Returns a value within bounds.
pub fn clamp(value: i32, low: i32, high: i32) -> i32 {
    if low > high {
        panic!("low must not be above high");
    }
    if value < low {
        return low;
    }
    if value > high {
        return high;
    }
    value
}

/// Returns the sum of digits.
pub fn digits(number: u32) -> Result<u32, String> {
    let (mut left, mut total) = (number, 0);
    while left > 0 {
        total = total + left % 10;
        left = left / 10;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    #[test]
    fn inner() {
        assert!(1 < 2);
    }
}
"""
CLAMP = """use toy::clamp;

#[test]
fn low() {
    assert_eq!(clamp(1, 2, 8), 2);
}

#[test]
fn high() {
    assert_eq!(clamp(9, 2, 8), 8);
}

#[test]
#[should_panic(expected = "above high")]
fn bounds() {
    clamp(1, 3, 2);
}
"""
DIGITS = """#[test]
fn some() -> Result<(), String> {
    assert_eq!(toy::digits(123)?, 6, "sum of digits");
    Ok(())
}

#[test]
#[ignore]
fn later() {
    assert!(false);
}
"""


@pytest.fixture
def rust_repository(tmp_path):
    """A crate with two files of tests."""
    files = {
        "Cargo.toml": '[package]\nname = "toy"\nversion = "0.1.0"\nedition = "2021"\n', "src/lib.rs": CODE,
        "tests/clamp.rs": CLAMP, "tests/digits.rs": DIGITS,
    }  # fmt: skip
    return write_files(tmp_path / "toy", files)
