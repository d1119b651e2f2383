"""The picture on the first page, from the JSON of finished reports: a dot for every task order.

``python -m docs.tools.front_figure`` writes ``docs/orders.png``.
"""

import json
from pathlib import Path

from orderless_lab.report.figures import new_figure, tidy

RESULTS = Path("lab/results")
ROWS = [  # label, report, method
    ("gradient descent, learning rate 0.1", "splitmnist-table1-high", "gd"),
    ("weighted particle filter, 0.1", "splitmnist-table1-high", "wpf"),
    ("gradient descent, 0.003", "splitmnist-table1", "gd"),
    ("weighted particle filter, 0.003", "splitmnist-table1", "wpf"),
    ("LwF + weighted particle filter, 0.03 / task", "splitmnist-falling", "lwf+wpf"),
    ("product, 3,000 units a layer", "product-splitmnist-domain-wide", "product"),
    ("exact head, column per task and label", "exact-splitmnist-domain", "exact"),
]


def main() -> None:
    figure = new_figure(7.6, 3.0)
    axes = figure.subplots()
    for height, (_, report, method) in enumerate(reversed(ROWS)):
        content = json.loads((RESULTS / f"{report}.json").read_text(encoding="utf-8"))
        averages = [100 * value for value in content["methods"][method]["order_averages"]]
        orderless = max(averages) - min(averages) < 1e-9
        colour = "#00897b" if orderless else "#78909c"
        axes.plot(averages, [height] * len(averages), "o", color=colour, alpha=0.7, clip_on=False)
        if orderless:
            text, place = f"{len(averages)} orders, one result", (averages[0], height)
            axes.annotate(text, place, (-9, -3), textcoords="offset points", ha="right")
    axes.set_yticks(range(len(ROWS)), [label for label, _, _ in reversed(ROWS)])
    axes.set_xlim(55, 100)
    axes.set_ylim(-0.6, len(ROWS) - 0.4)
    figure.supxlabel("accuracy after the last task, %: a dot for every order of the tasks", size=10)
    tidy(axes)
    figure.savefig("docs/orders.png", dpi=160)


if __name__ == "__main__":
    main()
