"""Float32 products of a frozen target on this CPU: oneDNN over kept layouts against PyTorch's own, by number of rows.

    python benchmarks/products.py                             layers and LM head of SmolLM2-135M's size
    python benchmarks/products.py rows=[1,8] shapes=[[4096,4096]]

As many weights of a shape take turns as fill no cache, as in a model. The last line is JSON: for each shape and number of
rows what PyTorch's own takes over oneDNN (``1536x576_rows8``), and the same with the layout made at every call
(``1536x576_rows8_unkept``).
"""

from __future__ import annotations

import json
import statistics
import time

import torch
from common import arguments
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from draftlab.cli import entry
from draftlab.target.products import AVAILABLE, FrozenProduct

DEFAULTS = {"rows": [1, 8, 20, 160], "shapes": [[1536, 576], [49152, 576]], "megabytes": 300, "repeats": 5, "seed": 0}


def milliseconds(rows: int, shape: tuple[int, int], cfg) -> dict[str, float]:
    """Median milliseconds of a product of ``rows`` rows with a weight of ``shape`` [N, K], by way of making it."""
    generator = torch.Generator().manual_seed(cfg.seed)
    count = max(1, int(cfg.megabytes * 1e6 / (4 * shape[0] * shape[1])))
    weights = [torch.randn(*shape, generator=generator) for _ in range(count)]
    x = torch.randn(rows, shape[1], generator=generator)
    kept, unkept = ([FrozenProduct(copy) for _ in weights] for copy in (True, False))
    ways = {"PyTorch": [F.linear] * count, "oneDNN, kept": kept, "oneDNN": unkept}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(cfg.repeats + 1):
        for name, products in ways.items():
            start = time.perf_counter()
            for product, weight in zip(products, weights, strict=True):
                product(x, weight)
            if turn:  # the first turn makes the layouts
                spent[name].append(1e3 * (time.perf_counter() - start) / count)
    return {name: statistics.median(values) for name, values in spent.items()}


@entry
@torch.no_grad()
def main() -> None:
    """Time all shapes and numbers of rows; print a table and the ratios."""
    cfg = arguments(DEFAULTS)
    if not AVAILABLE:
        print("this PyTorch has no oneDNN for this CPU: both sides are the same")
    table = Table(title="milliseconds of a product")
    for column in ("weight", "rows", "PyTorch", "oneDNN, kept", "oneDNN"):
        table.add_column(column, justify="right")
    figures = {}
    for shape in cfg.shapes:
        for rows in cfg.rows:
            spent = milliseconds(rows, tuple(shape), cfg)
            name = f"{shape[0]}x{shape[1]}"
            table.add_row(name, str(rows), *(f"{value:.3f}" for value in spent.values()))
            figures[f"{name}_rows{rows}"] = spent["PyTorch"] / spent["oneDNN, kept"]
            figures[f"{name}_rows{rows}_unkept"] = spent["PyTorch"] / spent["oneDNN"]
    Console().print(table)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
