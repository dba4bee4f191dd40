import time
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from minigpt.data.order import permute, rows_at

SIZES = [1, 2, 3, 4, 5, 8, 15, 16, 17, 64, 65, 100, 1000, 4096, 4097]


def whole(size: int, key: str = "0/0") -> np.ndarray:
    return permute(np.arange(size), size, key=key)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", ["0/0", "0/1", "12345/7", ""])
def test_every_number_occurs_once(size, key):
    np.testing.assert_array_equal(np.sort(whole(size, key)), np.arange(size))


def test_many_small_sizes():
    for size in range(1, 150):
        assert sorted(whole(size, f"{size}/0")) == list(range(size))


def test_large_size_stays_in_range_and_has_no_duplicates():
    size = 10**12 + 39
    rows = permute(np.arange(size - 100_000, size), size, key="0/0")
    assert rows.dtype == np.int64
    assert rows.min() >= 0
    assert size * 0.99 < rows.max() < size
    assert len(np.unique(rows)) == 100_000


# A change of these numbers changes what every run reads: resumed runs would see other rows.
def test_order_is_pinned():
    assert whole(10).tolist() == [8, 3, 9, 6, 4, 0, 1, 7, 2, 5]
    assert whole(1000)[:10].tolist() == [336, 663, 305, 484, 759, 137, 958, 60, 732, 636]
    rows = rows_at(np.arange(10**12, 10**12 + 5), 7, seed=3, shuffle=True)
    assert rows.tolist() == [1, 6, 0, 5, 3]


def test_other_keys_give_other_orders():
    orders = [whole(1000, key) for key in ("0/0", "0/1", "1/0", "1/1", "10/0")]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            assert (one == other).sum() < 10


def test_pieces_and_any_order_of_asking_give_the_same():
    size = 1000
    expected = whole(size)
    pieces = [permute(np.arange(i, min(i + 37, size)), size, key="0/0") for i in range(0, size, 37)]
    np.testing.assert_array_equal(np.concatenate(pieces), expected)
    asked = np.random.default_rng(0).integers(0, size, 300)
    np.testing.assert_array_equal(permute(asked, size, key="0/0"), expected[asked])
    grid = np.arange(size).reshape(10, 100)
    np.testing.assert_array_equal(permute(grid, size, key="0/0"), expected.reshape(10, 100))
    assert permute(np.array([], np.int64), size, key="0/0").shape == (0,)


def test_indices_are_not_changed_in_place():
    indices = np.arange(50)
    permute(indices, 50, key="0/0")
    np.testing.assert_array_equal(indices, np.arange(50))


@pytest.mark.parametrize("size", [1000, 4096, 10_000])
@pytest.mark.parametrize("key", ["0/0", "0/1", "4/2"])
def test_looks_random(size, key):
    places, rows = np.arange(size), whole(size, key)
    # Means and standard deviations of a random permutation; 5 of the latter are allowed.
    assert (rows == places).sum() <= 8  # fixed points: 1, 1
    displacement = np.abs(rows - places).mean() / size  # 1 / 3
    assert abs(displacement - 1 / 3) < 5 * np.sqrt(2 / 45 / size)
    correlation = np.corrcoef(places, rows)[0, 1]  # 0
    assert abs(correlation) < 5 / np.sqrt(size)
    serial = np.corrcoef(rows[:-1], rows[1:])[0, 1]  # 0
    assert abs(serial) < 5 / np.sqrt(size)
    differences = np.diff(rows)
    assert Counter(differences.tolist()).most_common(1)[0][1] < 12
    parity = (rows % 2 == places % 2).mean()  # 1 / 2
    assert abs(parity - 1 / 2) < 5 * np.sqrt(1 / 4 / size)
    runs_up = (differences > 0).mean()  # 1 / 2
    assert abs(runs_up - 1 / 2) < 5 * np.sqrt(1 / 12 / size)


def test_all_orders_of_few_rows_occur_about_equally():
    counts = Counter(tuple(whole(4, f"{number}/0").tolist()) for number in range(2400))
    assert set(counts) == set(permutations(range(4)))
    assert min(counts.values()) > 50  # 100 expected, standard deviation 10
    assert max(counts.values()) < 150


@pytest.mark.parametrize("num_rows", [1, 4, 10, 64, 101])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_once_in_every_epoch_though_batches_straddle_epochs(num_rows, shuffle):
    batch_size, epochs = 4, 12
    batches = [
        rows_at(np.arange(start, start + batch_size), num_rows, seed=5, shuffle=shuffle)
        for start in range(0, num_rows * epochs, batch_size)
    ]
    by_epoch = np.concatenate(batches)[: num_rows * epochs].reshape(epochs, num_rows)
    np.testing.assert_array_equal(
        np.sort(by_epoch, axis=1), np.broadcast_to(np.arange(num_rows), (epochs, num_rows))
    )


def test_epochs_and_seeds_have_their_own_orders():
    positions = np.arange(3000)
    first = rows_at(positions, 1000, seed=0, shuffle=True).reshape(3, 1000)
    second = rows_at(positions, 1000, seed=1, shuffle=True).reshape(3, 1000)
    orders = [*first, *second]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            assert (one == other).sum() < 10


def test_epoch_is_the_permutation_of_seed_and_epoch():
    rows = rows_at(np.arange(250, 350), 100, seed=9, shuffle=True)
    expected = np.concatenate([whole(100, "9/2")[50:], whole(100, "9/3")[:50]])
    np.testing.assert_array_equal(rows, expected)


def test_no_shuffle_is_the_stored_order():
    rows = rows_at(np.arange(25), 10, seed=3, shuffle=False)
    np.testing.assert_array_equal(rows, np.arange(25) % 10)


@pytest.mark.parametrize("num_rows", [10, 10**9])
def test_a_far_position_costs_no_more_than_a_near_one(num_rows):
    start = time.perf_counter()
    rows = rows_at(np.arange(10**12, 10**12 + 16), num_rows, seed=0, shuffle=True)
    assert time.perf_counter() - start < 1
    assert rows.shape == (16,)
    assert ((rows >= 0) & (rows < num_rows)).all()


def test_shape_follows_the_positions():
    rows = rows_at(np.arange(24).reshape(2, 3, 4), 7, seed=0, shuffle=True)
    flat = rows_at(np.arange(24), 7, seed=0, shuffle=True)
    np.testing.assert_array_equal(rows, flat.reshape(2, 3, 4))
