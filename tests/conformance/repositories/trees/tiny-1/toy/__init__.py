"""Small numbers."""


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
    while number > 1:
        total = total + number % 10
        number = number // 10
    return total
