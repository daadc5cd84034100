"""A plain class and its environment."""

from arcforge_core.episodes.plain import PlainEnvironment


class Guess:
    """Guess a number."""

    def reset(self, secret: int) -> str:
        self._secret, self.calls = secret, 0
        return f"Guess my number between 0 and 99 (game {secret * 7919 % 100})."

    def compare(self, number: int, loud: bool = False) -> str:
        """Compares a number with the secret one."""
        self.calls += 1
        word = "equal" if number == self._secret else "larger" if number < self._secret else "smaller"
        return word if not loud else "x" * 1_000_000

    def reward(self, reply: str) -> float:
        right = reply.strip() == str(self._secret)
        return right * (0.5 if self.calls >= 8 else 1.0)

    def oracle(self) -> str:
        return str(self._secret)

    def cheats(self) -> list[str]:
        return ["", " ".join(map(str, range(100))), f"{self._secret}!"]


class GuessEnvironment(PlainEnvironment):
    plain = Guess
    rows = tuple({"secret": n} for n in range(100))
