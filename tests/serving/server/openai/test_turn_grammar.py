import torch

from arcforge_serving.server.openai.turn_grammar import CallsMatcher, TurnMatcher, free_mask

V, EOS, STOP, THINK_END, BEGIN, END = 10, 9, 8, 7, 6, 5
FREE = free_mask(V, V - 1, (STOP,))


class Word:
    """A matcher of the ids 1 and 2, then the end, or 3."""

    def __init__(self):
        self.ids = []

    def allowed(self):
        next_ids = {0: [1], 1: [2], 2: [EOS, 3]}[len(self.ids)]
        return torch.isin(torch.arange(V), torch.tensor(next_ids))

    def accept(self, token):
        assert self.allowed()[token]
        self.ids.append(token)

    @property
    def finished(self):
        return len(self.ids) == 3


def ids(mask_V):
    return mask_V.nonzero().flatten().tolist()


def test_the_mask_has_what_the_tokenizer_knows():
    assert ids(free_mask(5, 3)) == [0, 1, 2]
    assert ids(free_mask(5, 5, (0, 4))) == [1, 2, 3]


def test_reasoning_is_free_and_the_grammar_follows():
    turn = TurnMatcher(Word, FREE, THINK_END, EOS, [STOP])
    for token in (3, 1, THINK_END):
        assert ids(turn.allowed()) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert not turn.finished
        turn.accept(token)
    for token in (1, 2):
        assert ids(turn.allowed()) == [token]
        turn.accept(token)
    assert ids(turn.allowed()) == [3, STOP, EOS]  # where the grammar may end, the turn may
    turn.accept(STOP)
    assert turn.finished


def test_a_grammar_that_cannot_go_on_ends_the_turn():
    turn = TurnMatcher(Word, FREE, None, EOS, [STOP])
    for token in (1, 2, 3):
        assert not turn.finished
        turn.accept(token)
    assert turn.finished


def test_calls_follow_their_grammar_and_the_rest_is_free():
    class Call(Word):
        def allowed(self):
            return torch.isin(torch.arange(V), torch.tensor([[1], [2], [END]][len(self.ids)]))

    free_V = free_mask(V, V)
    calls = CallsMatcher(BEGIN, END, Call, free_V, FREE)
    for _ in range(2):
        assert ids(calls.allowed()) == list(range(V))
        for token in (4, BEGIN):
            calls.accept(token)
        for token in (1, 2, END):
            assert ids(calls.allowed()) == [token]
            calls.accept(token)
    assert not calls.finished


def test_free_calls_and_what_may_follow_the_last():
    last_V = free_mask(V, V, range(STOP))
    calls = CallsMatcher(BEGIN, END, None, free_mask(V, V), FREE, last_V)
    calls.accept(BEGIN)
    for token in (1, BEGIN, 3):
        assert ids(calls.allowed()) == ids(FREE)  # no end of the turn inside a call
        calls.accept(token)
    calls.accept(END)
    assert ids(calls.allowed()) == [STOP, EOS]
