"""The science questions: formulas with numbers and results of typical mistakes, and the first elements."""

from __future__ import annotations

import random
from collections.abc import Callable

Problem = tuple[str, float, str, list[float]]
"""Question, value, unit, results of typical mistakes."""
ELEMENTS = {
    "hydrogen": ("H", 1, 1.008), "helium": ("He", 2, 4.003), "lithium": ("Li", 3, 6.94), "carbon": ("C", 6, 12.011),
    "nitrogen": ("N", 7, 14.007), "oxygen": ("O", 8, 15.999), "fluorine": ("F", 9, 18.998), "neon": ("Ne", 10, 20.180),
    "sodium": ("Na", 11, 22.990), "magnesium": ("Mg", 12, 24.305), "aluminium": ("Al", 13, 26.982),
    "silicon": ("Si", 14, 28.085), "phosphorus": ("P", 15, 30.974), "sulfur": ("S", 16, 32.06),
    "chlorine": ("Cl", 17, 35.45), "argon": ("Ar", 18, 39.95), "potassium": ("K", 19, 39.098),
    "calcium": ("Ca", 20, 40.078), "iron": ("Fe", 26, 55.845), "copper": ("Cu", 29, 63.546), "zinc": ("Zn", 30, 65.38),
    "bromine": ("Br", 35, 79.904), "silver": ("Ag", 47, 107.868), "tin": ("Sn", 50, 118.710),
    "iodine": ("I", 53, 126.904), "gold": ("Au", 79, 196.967), "lead": ("Pb", 82, 207.2),
}  # fmt: skip
"""Symbol, atomic number and molar mass in g/mol (IUPAC, abridged)."""


def force(draw: random.Random) -> Problem:
    """Newton's second law."""
    mass, acceleration = draw.randrange(2, 1500), draw.randrange(2, 30)
    question = f"A body of {mass} kg is accelerated at {acceleration} m/s^2. Which force acts on it, in newtons?"
    return question, mass * acceleration, "N", [mass / acceleration, mass + acceleration, mass * acceleration / 2]


def kinetic_energy(draw: random.Random) -> Problem:
    """Half of mass times velocity squared."""
    mass, speed = draw.randrange(2, 500), draw.randrange(2, 40)
    question = f"What is the kinetic energy of {mass} kg at {speed} m/s, in joules?"
    return question, mass * speed**2 / 2, "J", [mass * speed**2, mass * speed / 2, mass * speed]


def voltage(draw: random.Random) -> Problem:
    """Ohm's law."""
    resistance, current = draw.randrange(5, 900), draw.randrange(2, 90) / 10
    question = f"A current of {current} A flows through {resistance} ohm. What is the voltage, in volts?"
    return question, resistance * current, "V", [resistance / current, current / resistance, resistance * current**2]


def density(draw: random.Random) -> Problem:
    """Mass over volume."""
    mass, volume = draw.randrange(20, 5000), draw.randrange(3, 200)
    question = f"{mass} g of a metal fill {volume} cm^3. What is its density, in g/cm^3?"
    return question, mass / volume, "g/cm^3", [volume / mass, mass * volume, mass / volume * 10]


def wavelength(draw: random.Random) -> Problem:
    """Speed over frequency."""
    speed, frequency = draw.randrange(200, 6000), draw.randrange(20, 4000)
    question = f"A wave of {frequency} Hz travels at {speed} m/s. What is its wavelength, in metres?"
    return question, speed / frequency, "m", [frequency / speed, speed * frequency, 2 * speed / frequency]


def power(draw: random.Random) -> Problem:
    """Energy over time."""
    energy, minutes = draw.randrange(10, 900), draw.randrange(2, 60)
    question = f"A motor does {energy} kJ of work in {minutes} min. What is its mean power, in watts?"
    value = energy * 1000 / (minutes * 60)
    return question, value, "W", [energy / minutes, energy * 1000 / minutes, value * 3600]


def fall(draw: random.Random) -> Problem:
    """Distance of a free fall."""
    seconds = draw.randrange(11, 150) / 10
    question = f"How far does a body fall in {seconds} s from rest, at 9.81 m/s^2 and without air, in metres?"
    value = 9.81 * seconds**2 / 2
    return question, value, "m", [2 * value, 9.81 * seconds, 9.81 * seconds / 2]


def moles(draw: random.Random) -> Problem:
    """Mass over molar mass."""
    name, (symbol, _, molar) = draw.choice(list(ELEMENTS.items()))
    mass = draw.randrange(5, 900)
    question = f"How many moles of {symbol} atoms are in {mass} g of {name} ({molar} g/mol)?"
    return question, mass / molar, "mol", [mass * molar, molar / mass, mass / molar / 2]


def dilution(draw: random.Random) -> Problem:
    """Concentrations times volumes."""
    before, volume = draw.randrange(5, 60) / 10, draw.randrange(10, 200)
    total = volume + draw.randrange(50, 800)
    question = (
        f"{volume} mL of a {before} mol/L solution are made up to {total} mL. What is its concentration, in mol/L?"
    )
    value = before * volume / total
    return question, value, "mol/L", [before * total / volume, before * volume / (volume + total), before * volume]


def gas_pressure(draw: random.Random) -> Problem:
    """The ideal gas law."""
    amount, volume, kelvin = draw.randrange(1, 40) / 10, draw.randrange(2, 60), draw.randrange(250, 500)
    given = f"{amount} mol of an ideal gas are in {volume} L at {kelvin} K (R = 8.314 J/(mol K))"
    question = f"{given}. What is the pressure, in kPa?"
    value = amount * 8.314 * kelvin / volume
    return (
        question,
        value,
        "kPa",
        [amount * 8.314 * (kelvin - 273) / volume, value / 1000, amount * 8.314 * volume / kelvin],
    )


QUANTITIES: tuple[Callable[[random.Random], Problem], ...] = (
    force, kinetic_energy, voltage, density, wavelength, power, fall, moles, dilution, gas_pressure,
)  # fmt: skip


def element_question(draw: random.Random) -> tuple[str, str, list[str]]:
    """Returns a question about an element, the right answer and three wrong ones."""
    name, *others = draw.sample(list(ELEMENTS), 4)
    symbol, number, _ = ELEMENTS[name]
    form = draw.randrange(4)
    if form == 0:
        return f"Which element has the symbol {symbol}?", name, others
    if form == 1:
        return f"What is the symbol of {name}?", symbol, [ELEMENTS[other][0] for other in others]
    if form == 2:
        return f"Which element has atoms with {number} protons?", name, others
    return f"What is the atomic number of {name}?", str(number), [str(ELEMENTS[other][1]) for other in others]
