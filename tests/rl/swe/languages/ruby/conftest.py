import pytest

from support.trees import write_files

CODE = """# Small numbers.
module Toy
  def self.clamp(value, low, high)
    raise ArgumentError, 'low is above high' if low > high
    return low if value < low

    value > high ? high : value
  end

  def self.digits(number)
    total = number % 10
    if number > 9
      total += digits(number / 10)
    end
    total
  end
end
"""
MINITEST = """require 'minitest/autorun'
require 'toy'

class ClampTest < Minitest::Test
  def test_low = assert_equal(2, Toy.clamp(1, 2, 8))
  def test_inside = assert_equal(5, Toy.clamp(5, 2, 8))
  def test_high = assert_equal(8, Toy.clamp(9, 2, 8))
  def test_refused = assert_raises(ArgumentError) { Toy.clamp(1, 3, 2) }
end
"""
UNIT = """require 'test/unit'
require_relative '../lib/toy'

class DigitsTest < Test::Unit::TestCase
  def test_sum
    assert_equal 6, Toy.digits(123)
  end

  def test_none
    assert_equal 0, Toy.digits(0)
  end
end
"""
RSPEC = """require 'toy'

RSpec.describe Toy do
  it('adds') { expect(Toy.digits(99)).to eq(18) }
  it('keeps') { expect(Toy.clamp(3, 1, 5)).to eq(3) }
end
"""


@pytest.fixture
def rubies(tmp_path):
    """A repository in Ruby, tested with minitest, test-unit and RSpec."""
    files = {
        "lib/toy.rb": CODE,
        "test/test_clamp.rb": MINITEST,
        "test/digits_test.rb": UNIT,
        "spec/toy_spec.rb": RSPEC,
    }
    return write_files(tmp_path / "toy", files)
