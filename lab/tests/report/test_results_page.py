"""The documentation's result pages come from the JSON, and the check notices when they do not."""

import json
import subprocess
import sys

import numpy as np
import pytest
from docs.tools.results_page import main
from lab.tests.report.synthetic_cells import make_cell

from orderless_lab.report import summarize
from orderless_lab.report.paper import HSU_2018, TABLE_1
from orderless_lab.report.tables import format_tables


@pytest.fixture
def results(full_report, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "splitmnist-table1.json").write_text(full_report)
    return folder


def run(folder, *options):
    return main(["--directory", str(folder), *options])


def test_the_page_shows_our_figures_beside_the_papers(results):
    assert run(results) == 0
    page = (results / "table1-details.md").read_text()
    summary = json.loads((results / "splitmnist-table1.json").read_text())
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines()[::-1]}
    for label, method in (("LwF + WPF", "lwf+wpf"), ("Gradient descent", "gd")):
        average, variance = TABLE_1["splitmnist"][method]
        ours = summary["methods"][method]["average"]
        assert f"| {100 * average:.1f} | {variance:.3f} | {100 * ours:.1f} |" in rows[label]
    assert "orderless run splitmnist --preset table1" in page
    assert "on cpu" in page and "learning rate 0.001" in page
    for claim in summary["claims"]:
        assert claim["evidence"] in page


def test_check_passes_on_a_fresh_page_and_fails_on_an_edited_one(results, capsys):
    run(results)
    assert run(results, "--check") == 0
    page = results / "table1.md"
    page.write_text(page.read_text().replace("72.0", "73.0"))
    edited = page.read_text()
    assert run(results, "--check") == 1
    assert "table1.md differs from the JSON beside it" in capsys.readouterr().err
    assert page.read_text() == edited  # a check writes nothing
    run(results)
    assert run(results, "--check") == 0


def test_check_fails_when_the_json_changed_or_the_page_is_missing(results):
    assert run(results, "--check") == 1
    run(results)
    path = results / "splitmnist-table1.json"
    summary = json.loads(path.read_text())
    summary["methods"]["wpf"]["average"] += 0.01
    path.write_text(json.dumps(summary))
    assert run(results, "--check") == 1


def test_a_page_without_json_behind_it_is_removed(results):
    run(results)
    (results / "splitmnist-table1.json").unlink()
    assert run(results, "--check") == 1
    run(results)
    assert not (results / "table1.md").exists()
    assert run(results, "--check") == 0


def test_json_of_other_kinds_is_passed_over_and_broken_json_named(results, capsys):
    run(results)
    (results / "speed.json").write_text('{"milliseconds": [1, 2]}')
    assert run(results, "--check") == 0
    (results / "broken.json").write_text("{")
    assert run(results, "--check") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_rows_below_the_papers_average_are_named(results):
    run(results)
    page = (results / "table1-details.md").read_text()
    summary = json.loads((results / "splitmnist-table1.json").read_text())
    (line,) = [row for row in page.splitlines() if row.startswith("Below the paper's average")]
    for method, (average, _) in TABLE_1["splitmnist"].items():
        ours = summary["methods"][method]["average"]
        assert (f"{100 * ours:.1f} against {100 * average:.1f}" in line) == (ours < average)


def test_remarks_and_figures_beside_the_json_are_shown(results):
    (results / "table1.remarks.txt").write_text("EWC is weak at this learning rate.\n")
    (results / "table1-details.remarks.txt").write_text("Five orders.\n")
    (results / "splitmnist-table1-figure2.png").write_bytes(b"")
    run(results)
    page = (results / "table1.md").read_text()
    assert "EWC is weak at this learning rate." in page
    assert "](splitmnist-table1-figure2.png)" in page and "figure1.png" not in page
    assert "## Remarks\n\nFive orders.\n" in (results / "table1-details.md").read_text()


def test_the_front_page_sets_each_setting_beside_the_paper(results):
    summary = json.loads((results / "splitmnist-table1.json").read_text())
    methods = summary["methods"]
    methods["ewc-tuned"] = methods["ewc"] | {"average": 0.6631, "average_logits": 0.1}
    methods["wpf"] |= {"average": 0.51, "average_logits": 0.7204, "order_variance": 0.0123}
    methods["si"] |= {"average": 0.3, "died": 2}
    (results / "splitmnist-table1.json").write_text(json.dumps(summary))
    run(results)
    lines = (results / "table1.md").read_text().splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in lines[::-1]}
    assert rows["Weighted particle filter"].startswith(
        "| Weighted particle filter | 72.0 | **51.0 / 72.0** (0.012) |"
    )
    assert "| **66.3** (" in rows["EWC"]  # one network: not scored by logits
    assert ", 2 of 30 broke off)" in rows["SI"] and "| 30.0 (" in rows["SI"]
    heading = next(line for line in lines if line.startswith("| method | paper |"))
    for entry in methods.values():
        entry["orders"] = 1  # which tells nothing about the order
    single = summary | {"preset": "paper", "settings": summary["settings"] | {"batch_size": 8}}
    (results / "splitmnist-paper.json").write_text(json.dumps(single))
    run(results)
    assert heading in (results / "table1.md").read_text()


def test_settings_that_are_not_the_presets_and_other_scenarios_are_named(results):
    summary = json.loads((results / "splitmnist-table1.json").read_text())
    settings = {"lr": 0.01, "batch_size": 8, "network": "released", "epochs": 4}
    paper = summary | {"preset": "paper", "settings": settings}
    (results / "splitmnist-paper.json").write_text(json.dumps(paper))
    by_class = summary | {"scenario": "class", "settings": {"optimizer": "adam", "adam_lr": 1e-3}}
    (results / "splitmnist-class.json").write_text(json.dumps(by_class))
    run(results)
    words = "SGD 0.01, released network, batch 8, 4 passes"
    first, others = (results / "table1.md").read_text().split("class- and task-incremental")
    assert words in first and "class, Adam 0.001" in others
    details = (results / "table1-details.md").read_text()
    title = "paper, learning rate 0.01, released network, batch 8, 4 passes"
    assert f"## SplitMNIST, domain, {title}" in details


def test_several_reports_stand_side_by_side_in_the_list_of_claims(results):
    summary = json.loads((results / "splitmnist-table1.json").read_text())
    low = summary | {"preset": "table1-low", "settings": {"lr": 0.0001}}
    first, *others = [claim | {"holds": "not decidable"} for claim in summary["claims"]]
    low["claims"] = [first | {"holds": False}, *others]
    (results / "splitmnist-table1-low.json").write_text(json.dumps(low))
    short = summary | {"preset": "table1-short", "claims": [first, *others]}  # nothing to tell
    (results / "splitmnist-table1-short.json").write_text(json.dumps(short))
    run(results)
    page = (results / "table1.md").read_text()
    (row,) = [
        line
        for line in page.splitlines()
        if line.startswith("| SI + WPF is above SI | average | **yes** | u")
    ]
    assert row.endswith("| **yes** | undecided |")


def test_single_networks_stand_beside_the_literature(write_cells, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    cells = [
        make_cell(name, 0, seed, preset="strong") for name in ("adam", "lwf") for seed in range(4)
    ]
    (folder / "strong.json").write_text(format_tables(summarize(write_cells(cells)), "json"))
    assert run(folder) == 0
    assert not (folder / "table1.md").exists()
    page = (folder / "literature.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| LwF")]
    assert f"| {100 * HSU_2018['domain']['lwf']:.1f} | 71.5 | 4 x 1 |" in row
    assert "seeds where others have" not in page


def test_a_row_with_more_seeds_than_others_says_what_it_had_with_as_many(write_cells, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    seeds = {"adam": 6, "lwf": 4}
    cells = [
        make_cell(name, 0, seed, preset="strong") for name, n in seeds.items() for seed in range(n)
    ]
    (folder / "strong.json").write_text(format_tables(summarize(write_cells(cells)), "json"))
    assert run(folder) == 0
    first = np.mean([cell["scores"]["accuracy"][-1] for cell in cells[:4]])
    words = f"Adam has 6 seeds where others have 4: over its first 4 alone it is {100 * first:.1f}."
    assert words in (folder / "literature.md").read_text()


@pytest.mark.slow
def test_the_module_is_a_command(results):
    command = [sys.executable, "-m", "docs.tools.results_page", "--check"]
    done = subprocess.run(
        [*command, "--directory", str(results)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 2 and "differs" in done.stderr


def test_the_exact_filter_by_itself_has_a_page_of_its_own(results):
    summary = json.loads((results / "splitmnist-table1.json").read_text())
    entry = {**next(iter(summary["methods"].values())), "average": 0.987, "order_variance": 0.0}
    settings = {**summary["settings"], "rb_features": 6000, "rb_particles": 4}
    alone = {**summary, "methods": {"rb": entry}, "settings": settings, "claims": []}
    (results / "rb-splitmnist-domain.json").write_text(json.dumps(alone))
    assert run(results) == 0
    assert " | 4 x 6000 | 98.7 |" in (results / "exact-filter.md").read_text()
    assert "rb-splitmnist-domain.json" not in (results / "table1.md").read_text()


def test_the_products_page_has_its_rows_its_peers_and_what_was_measured(results):
    summary = json.loads((results / "splitmnist-table1.json").read_text())
    entry = {**summary["methods"]["gd"], "average": 0.915, "order_variance": 0.0}
    command = "orderless run splitmnist --methods product --set hidden=1000"
    alone = {**summary, "methods": {"product": entry}, "claims": [], "command": command}
    (results / "product-splitmnist-domain.json").write_text(json.dumps(alone))
    many = {**alone, "methods": {"product+particles": {**entry, "average_probs": 0.945}}}
    (results / "product-splitmnist-domain-particles.json").write_text(json.dumps(many))
    plain = {**summary, "settings": {**summary["settings"], "augment": "none"}}
    (results / "another-first-by-name.json").write_text(json.dumps(plain))
    points = [
        {"scenario": "domain", "lr": 0.1, "accuracy": 91.2},
        {"scenario": "domain", "lr": 1.0, "diverged": "no particle is left"},
    ]
    section = {"title": "Rates", "text": "On held-out data.", "points": points}
    crossed = {**section, "rows": ["scenario"], "columns": ["lr"]}
    (results / "product-measured.json").write_text(json.dumps({"sections": [crossed, section]}))
    assert run(results) == 0
    page = (results / "product.md").read_text()
    assert "| Product of task posteriors | table1, hidden=1000 | 91.5 |" in page
    gd = 100 * summary["methods"]["gd"]["average"]
    assert f"| Gradient descent | table1 | {gd:.1f} |" in page and "LwF + WPF 79.2" in page
    assert "| scenario | lr=0.1 | lr=1.0 |" in page and "| domain | 91.2 | diverged |" in page
    assert "| domain | 1.0 |  | no particle is left |" in page
    assert "| Product of task posteriors, particles | 94.5 (0) |" in page  # the mean prediction
    front = (results / "table1.md").read_text()
    assert "product-splitmnist-domain.json" not in front
    first, second = front.split("| method | paper | ")[1].split(" | ")[:2]
    assert "plain images" in second and "plain images" not in first  # `table1` as it is leads
    assert "([own settings](product.md)) | - | 91.5 (0) |  |" in front
