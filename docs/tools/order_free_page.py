"""The page of closed-form learners on frozen features."""

from docs.tools.sections import PROSE, Results, page, table

NAMES = {"cifar100": "CIFAR-100", "banking77": "Banking77", "clinc150": "CLINC150"}
COMMAND = "python benchmarks/order_free.py --data {data} --features {features} --fourier {fourier}"
COLUMNS = {
    "method": "{method}".format_map,
    "accuracy, %": "{accuracy:.2f}".format_map,
    "order variance": lambda row: f"{row['order_variance']:.1e}" if row["order_variance"] else "0",
    "labels flipped": "{flipped} of {tests}".format_map,
    "bits": lambda row: "equal" if row["equal_bits"] else "differ",
    "deletion": "{deletion}".format_map,
    "merging": "{merging}".format_map,
    "seconds per order": "{seconds:.1f}".format_map,
}


def order_free_page(results: Results) -> str | None:
    """From `order-free-*.json`, as benchmarks/order_free.py writes them; None without one."""
    words, parts = PROSE["order_free"]["words"], []
    for path in sorted(results.directory.glob("order-free-*.json")):
        found = results.read(path.name)
        figures = table(COLUMNS, [{**found, **row} for row in found["rows"]])
        command = f"```\n{COMMAND.format(**found)}\n```"
        where = f"On {found['device']}, torch {found['torch']}; data: [`{path.name}`]({path.name})."
        parts.append(f"## {NAMES[found['data']]}\n\n{figures}\n{command}\n\n{where}\n")
    return page("Learners without an order, side by side", words, *parts) if parts else None
