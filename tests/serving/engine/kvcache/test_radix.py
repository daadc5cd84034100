import torch

from arcforge_serving.engine.kvcache.pages import PagePool
from arcforge_serving.engine.kvcache.radix import RadixTree, walk
from arcforge_serving.engine.kvcache.tier import FileTier


def grow(tree, tokens, root=None):
    """Returns the path of a new sequence of whole pages, which uses it."""
    nodes, size = [], tree.page_size
    for start in range(0, len(tokens), size):
        (page,) = tree.pages.take(1)
        nodes.append(tree.add(nodes[-1] if nodes else root or tree.root, tuple(tokens[start : start + size]), page))
    return nodes


def test_the_longest_known_prefix_is_found():
    tree = RadixTree(PagePool(8), 2)
    path = grow(tree, [1, 2, 3, 4, 5, 6])
    assert tree.match([1, 2, 3, 4, 9, 9], 3) == path[:2]
    assert tree.match([1, 2, 3, 4, 5, 6], 2) == path[:2]
    assert tree.match([2, 1, 3, 4], 2) == []


def test_a_prefix_that_two_have_computed_is_kept_once():
    tree = RadixTree(PagePool(8), 2)
    first, second = grow(tree, [1, 2, 3, 4]), grow(tree, [1, 2, 3, 4])
    assert first == second
    assert [node.users for node in first] == [2, 2]
    assert tree.pages.free == 6


def test_the_least_recently_used_leaf_goes_first_and_nothing_that_is_used():
    tree = RadixTree(PagePool(6), 1)
    old, new, used = grow(tree, [1, 2]), grow(tree, [3, 4]), grow(tree, [5])
    root = tree.root
    tree.release(old, root)
    tree.release(new, root)
    tree.use(old)  # now the more recent one
    tree.release(old, root)
    assert tree.idle == 4
    tree.evict(2)
    assert tree.match([3, 4], 2) == new[:1]
    tree.evict(3)
    assert tree.match([3, 4], 2) == []
    assert tree.match([1, 2], 2) == old
    tree.evict(6)
    assert (tree.pages.free, tree.idle) == (5, 0)
    assert tree.match([5], 1) == used


def test_after_a_turn_nothing_is_found_and_users_keep_what_they_have():
    tree = RadixTree(PagePool(6), 1)
    idle, used, root = grow(tree, [1, 2]), grow(tree, [1, 7]), tree.root
    tree.release(idle, root)
    tree.turn()
    assert tree.match([1, 7], 2) == []
    assert tree.pages.free == 4  # the page of 2 is free
    used.append(tree.add(used[-1], (8,), tree.pages.take(1)[0]))
    assert tree.match([1, 7, 8], 3) == []
    tree.release(used, root)
    assert (tree.pages.free, tree.idle) == (6, 0)


def test_candidates_for_eviction_do_not_pile_up():
    tree = RadixTree(PagePool(4), 1)
    path = grow(tree, [1])
    for _ in range(1000):
        tree.release(path, tree.root)
        tree.use(path)
    assert len(tree._leaves) < 100


def test_evicted_pages_come_back_from_the_second_tier(tmp_path):
    tier, written = FileTier(2, 3, str(tmp_path)), []
    tree = RadixTree(PagePool(3), 1, tier, lambda page, ticket: written.append((page, ticket)))
    path = grow(tree, [1, 2, 3])
    pages = [node.page for node in path]
    tree.release(path, tree.root)
    tree.evict(2)
    assert [page for page, _ in written] == [pages[2], pages[1]]
    assert tree.match([1, 2, 3], 3) == path
    assert tree.record(path[1]) is None  # not written yet
    for number, (_, ticket) in enumerate(written):
        tier.write(ticket, torch.full((3,), number, dtype=torch.uint8))
    assert tree.record(path[1]).tolist() == [1, 1, 1]
    tree.use(path[:1])
    (page,) = tree.pages.take(1)
    tree.restore(path[1], page)
    assert (path[1].page, path[1].ticket, tier.free, tree.idle) == (page, None, 1, 1)
    tree.forget(path[1])
    assert tree.match([1, 2, 3], 3) == path[:1]
    assert tier.free == 2
    tier.close()


def test_a_full_second_tier_forgets_its_oldest_leaf(tmp_path):
    tier = FileTier(2, 1, str(tmp_path))
    tree = RadixTree(PagePool(4), 1, tier, lambda page, ticket: tier.write(ticket, torch.zeros(1, dtype=torch.uint8)))
    for token in range(4):
        tree.release(grow(tree, [token]), tree.root)
    tree.evict(4)
    assert [len(tree.match([token], 1)) for token in range(4)] == [0, 0, 1, 1]
    assert len(list(walk(tree.root))) == 3
    tier.close()
