"""The planner ranks published meshes as they were measured."""

import runpy
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "published.py"


def test_the_published_meshes_are_ranked_as_measured():
    """Of figures that nothing was fitted to; a wrong formula moves them a lot."""
    published = runpy.run_path(str(BENCHMARK))
    found = published["cells"](search=False)
    assert len(found) == 26
    figures = published["summary"](found)
    assert figures["rank correlation, published meshes"] > 0.85
    assert figures["mean absolute error of MFU, points, published meshes"] < 6


def test_ranks():
    spearman = runpy.run_path(str(BENCHMARK))["spearman"]
    assert spearman([(1, 10), (2, 20), (3, 30)]) == 1
    assert spearman([(1, 30), (2, 20), (3, 10)]) == -1
