import pytest

from support.trees import write_files

CODE = """package acme;

public final class Toy {
    private Toy() { }

    public static int clamp(int value, int low, int high) {
        if (low > high) {
            throw new IllegalArgumentException("low is above high");
        }
        if (value < low) {
            return low;
        }
        return value > high ? high : value;
    }

    public static int digits(int number) {
        int total = number % 10;
        if (number > 9) {
            total = total + digits(number / 10);
        }
        return total;
    }
}
"""
OLD = """package acme;

import static org.junit.Assert.assertEquals;

import org.junit.Ignore;
import org.junit.Test;

public class ClampTest {
    @Test public void low() { assertEquals(2, Toy.clamp(1, 2, 8)); }
    @Test public void inside() { assertEquals(5, Toy.clamp(5, 2, 8)); }
    @Test public void high() { assertEquals(8, Toy.clamp(9, 2, 8)); }
    @Test(expected = IllegalArgumentException.class) public void refused() { Toy.clamp(1, 3, 2); }
    @Ignore @Test public void later() { assertEquals(1, 2); }
}
"""
NEW = """package acme;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class DigitsTest {
    @Test void sum() { assertEquals(6, Toy.digits(123)); }
    @Test void none() { assertEquals(0, Toy.digits(0)); }
}
"""


@pytest.fixture
def beans(tmp_path):
    """A repository in Java, tested with JUnit 4 and 5."""
    files = {
        "src/main/java/acme/Toy.java": CODE,
        "src/test/java/acme/ClampTest.java": OLD,
        "src/test/java/acme/DigitsTest.java": NEW,
    }
    return write_files(tmp_path / "toy", files)
