"""Ruby: minitest, test-unit and RSpec."""
