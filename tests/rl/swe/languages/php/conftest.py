import pytest

from support.trees import write_files

PROJECT = '{"name": "acme/toy", "autoload": {"psr-4": {"Acme\\\\": "src/"}, "files": ["src/digits.php"]}}\n'
CODE = """<?php

namespace Acme;

final class Toy
{
    public static function clamp(int $value, int $low, int $high): int
    {
        if ($low > $high) {
            throw new \\InvalidArgumentException('low is above high');
        }
        if ($value < $low) {
            return $low;
        }
        return $value > $high ? $high : $value;
    }
}
"""
DIGITS = """<?php

namespace Acme;

function digits(int $number): int
{
    $total = $number % 10;
    if ($number > 9) {
        $total += digits(intdiv($number, 10));
    }
    return $total;
}
"""
CLAMP_TEST = """<?php

namespace Acme\\Tests;

use Acme\\Toy;
use PHPUnit\\Framework\\TestCase;

class ClampTest extends TestCase
{
    /** @dataProvider cases */
    public function testInside(int $value, int $wanted): void
    {
        $this->assertSame($wanted, Toy::clamp($value, 2, 8));
    }

    public static function cases(): array
    {
        return [[1, 2], [5, 5], 'high' => [9, 8]];
    }

    public function testRefused(): void
    {
        $this->expectException(\\InvalidArgumentException::class);
        Toy::clamp(1, 3, 2);
    }
}
"""
DIGITS_TEST = """<?php

require_once __DIR__ . '/../vendor/autoload.php';

class DigitsTest extends PHPUnit\\Framework\\TestCase
{
    public function testSum()
    {
        $this->assertEquals(6, Acme\\digits(123));
    }

    public function testNone()
    {
        $this->assertEquals(0, Acme\\digits(0));
    }
}
"""


@pytest.fixture
def elephants(tmp_path):
    """A repository in PHP, loaded as its Composer file says."""
    files = {
        "composer.json": PROJECT,
        "phpunit.xml.dist": '<phpunit bootstrap="vendor/autoload.php"><testsuites/></phpunit>\n',
        "src/Toy.php": CODE,
        "src/digits.php": DIGITS,
        "tests/ClampTest.php": CLAMP_TEST,
        "tests/DigitsTest.php": DIGITS_TEST,
    }
    return write_files(tmp_path / "toy", files)
