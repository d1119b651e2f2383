"""An exact head over a Ray Data dataset on a real cluster: the bits of one machine."""

import pytest
from tests.distributed.shards import X, Y, die_once, empty, same, whole

import orderless as ol
from orderless.distributed import fit

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster(ray_cluster):
    ray.data.DataContext.get_current().enable_progress_bars = False


def dataset(blocks):
    rows = [{"x": x, "y": int(y)} for x, y in zip(X.numpy(), Y, strict=True)]
    return ray.data.from_items(rows, override_num_blocks=blocks)


@pytest.mark.parametrize(("workers", "blocks"), [(2, 2), (None, 17)])
def test_any_number_of_workers_and_blocks_gives_the_bits_of_one_update(workers, blocks):
    assert same(fit(empty(), dataset(blocks), workers=workers), whole())


def test_a_worker_killed_in_the_middle_changes_nothing(tmp_path, record_property):
    def read(block):
        die_once(tmp_path)
        return block["x"], block["y"]

    assert same(fit(empty(), dataset(12), read), whole())
    assert (tmp_path / "killed").exists()  # or the test has tested nothing
    record_property("fault: killed Ray worker of a fit", 1)


def test_columns_and_lists_of_files_are_read_by_a_function(tmp_path):
    import pandas

    table = pandas.DataFrame({"all": X.tolist(), "label": Y.numpy()})
    table.to_parquet(tmp_path / "x.parquet")
    blocks = ray.data.read_parquet(str(tmp_path))
    assert same(fit(empty(), blocks, lambda block: (block["all"], block["label"])), whole())
    with pytest.raises(Exception, match="the columns .* but not x and y: give read="):
        fit(empty(), blocks)


def test_what_a_worker_raises_or_warns_of_is_heard_here():
    with pytest.raises(Exception, match="labels must lie between 0 and 1, got 2"):
        fit(ol.ExactHead("linear", classes=2), dataset(3))
    with pytest.warns(UserWarning, match="of the features lie beyond .* are clipped"):
        fit(ol.ExactHead("linear", feature_limit=0.25), dataset(3))
