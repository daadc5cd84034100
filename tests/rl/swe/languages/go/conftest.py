import pytest

CODE = """package toy

import "errors"

// Clamp returns a value within bounds.
func Clamp(value, low, high int) (int, error) {
	if low > high {
		return 0, errors.New("low must not be above high")
	}
	if value < low {
		return low, nil
	}
	if value > high {
		return high, nil
	}
	return value, nil
}

// Digits returns the sum of digits.
func Digits(number int) int {
	total := 0
	for number > 0 {
		total = total + number%10
		number = number / 10
	}
	return total
}
"""
TESTS = """package toy

import "testing"

func TestClamp(t *testing.T) {
	for _, one := range [][4]int{{1, 2, 8, 2}, {5, 2, 8, 5}, {9, 2, 8, 8}} {
		if found, _ := Clamp(one[0], one[1], one[2]); found != one[3] {
			t.Errorf("Clamp(%d) is %d, want %d", one[0], found, one[3])
		}
	}
}

func TestBounds(t *testing.T) {
	if _, flaw := Clamp(1, 3, 2); flaw == nil {
		t.Error("bounds in the wrong order are taken")
	}
}
"""
MORE = """package toy_test

import (
	"testing"

	"example.org/toy"
)

func TestDigits(t *testing.T) {
	if found := toy.Digits(123); found != 6 {
		t.Fatalf("Digits(123) is %d, want 6", found)
	}
}

func TestNoDigits(t *testing.T) {
	t.Run("zero", func(t *testing.T) {
		t.Parallel()
		if found := toy.Digits(0); found != 0 {
			t.Errorf("Digits(0) is %d, want 0", found)
		}
	})
}

func TestLater(t *testing.T) { t.Skip("not today") }
"""
EXAMPLE = """package toy_test

import (
	"fmt"

	"example.org/toy"
)

func ExampleDigits() {
	fmt.Println(toy.Digits(7))
	// Output: 7
}
"""


@pytest.fixture
def go_repository(tmp_path):
    """A module with files of tests inside and outside of its package, and one with an example alone."""
    folder = tmp_path / "toy"
    folder.mkdir()
    files = {"go.mod": "module example.org/toy\n\ngo 1.19\n", "toy.go": CODE}
    for path, text in {**files, "toy_test.go": TESTS, "digits_test.go": MORE, "example_test.go": EXAMPLE}.items():
        (folder / path).write_text(text)
    return folder
