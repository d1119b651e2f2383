"""An exact filter over a Ray Data dataset on a real cluster: the bits of one machine."""

import pytest
import torch
from tests.distributed.shards import X, Y, die_once, make_filter, same, whole

import orderless as ol
from orderless.distributed import fit
from orderless_lab.experiments.launch.ray import import_ray

pytestmark = pytest.mark.slow

ray = import_ray()


@pytest.fixture(scope="module", autouse=True)
def cluster(ray_cluster):
    ray.data.DataContext.get_current().enable_progress_bars = False


def dataset(blocks):
    rows = [{"x": x, "y": int(y)} for x, y in zip(X.numpy(), Y, strict=True)]
    return ray.data.from_items(rows, override_num_blocks=blocks)


@pytest.mark.parametrize(("workers", "blocks"), [(2, 1), (3, 17)])
def test_any_number_of_workers_and_blocks_gives_the_bits_of_one_update(workers, blocks):
    told = []
    options = {"workers": workers, "progress": lambda *said: told.append(said)}
    assert same(fit(make_filter, dataset(blocks), **options), whole())
    assert told[-1] == (blocks, None, f"{blocks} blocks")


def test_a_worker_killed_in_the_middle_changes_nothing(tmp_path, record_property):
    def read(batch):
        if len(list(tmp_path.glob("work/parts/*"))) >= 4:
            die_once(tmp_path)
        return batch["x"], batch["y"]

    options = {"read": read, "workers": 3, "directory": tmp_path / "work"}
    assert same(fit(make_filter, dataset(12), **options), whole())
    assert (tmp_path / "killed").exists()  # or the test has tested nothing
    record_property("fault: killed Ray worker of a fit", 1)

    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("work/parts/*")}
    assert len(written) == 12
    assert same(fit(make_filter, dataset(12), **options), whole())  # from the files
    assert all(path.stat().st_mtime_ns == at for path, at in written.items())


def test_files_of_columns_and_lists_are_read_by_a_function(tmp_path):
    import pandas

    for number, rows in enumerate((slice(0, 400), slice(400, 1000))):
        columns = {f"c{k}": X[rows, k].numpy() for k in range(6)}
        table = pandas.DataFrame({**columns, "label": Y[rows].numpy()})
        table["all"] = X[rows].tolist()
        table.to_parquet(tmp_path / f"{number}.parquet")
    table = ray.data.read_parquet(str(tmp_path))

    def apart(batch):
        return torch.stack([torch.tensor(batch[f"c{k}"]) for k in range(6)], 1), batch["label"]

    assert same(fit(make_filter, table, read=apart), whole())
    lists = fit(make_filter, table, read=lambda b: (b["all"], b["label"]))
    assert torch.equal(lists.predict(X[:9]), whole().predict(X[:9]))
    with pytest.raises(ValueError, match="the columns .* but not x and y: give read="):
        fit(make_filter, table)


def test_what_a_worker_raises_or_warns_of_is_heard_here():
    with pytest.raises(ValueError, match="labels must lie between 0 and 1, got 2"):
        fit(lambda: make_filter(classes=2), dataset(3))

    def small():
        maps = ol.Ensemble(lambda: ol.features.RandomReLU(6, 16), n=1)
        return ol.ExactHead(maps, feature_limit=0.25)

    with pytest.warns(UserWarning, match="of the features lie beyond .* are clipped"):
        fit(small, dataset(3))
