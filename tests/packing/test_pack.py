# SPDX-License-Identifier: Apache-2.0
"""Packing folders: what goes in, what is refused, and that equal inputs give equal bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from feedrate import Dataset, Loader, PackOptions, pack, unpack, verify
from feedrate.errors import AlreadyExists, NotFound, SourceError, UsageError
from feedrate.format.pack import Pack
from feedrate.packing.build.listing import order_samples
from feedrate.packing.check.describe import describe
from feedrate.packing.workers import start_worker
from feedrate.progress import Tick
from support.images import read_tree, save_image
from support.worker_functions import read_keys

SMALL = PackOptions(shard_bytes=10_000, workers=1)


def open_rows(folder: Path) -> tuple[list[str], np.ndarray]:
    opened = Pack(folder)
    positions = np.arange(len(opened))
    rows, statuses = opened.rows(positions)
    assert not statuses.any()
    keys = [key.decode() for key in opened.texts("key", positions)]
    opened.close()
    return keys, rows


def test_class_folders_become_labels_in_sorted_order(jpeg_folder: Path, tmp_path: Path) -> None:
    result = pack(jpeg_folder, tmp_path / "p", SMALL)
    assert (result.samples, result.classes, result.rejected) == (16, 2, ())
    keys, rows = open_rows(tmp_path / "p")
    assert {key: int(label) for key, label in zip(keys, rows["label"], strict=True)} == {
        key: int(key.startswith("dog")) for key in keys
    }
    assert "dog/deeper/still/one" in keys


def test_numbers_are_the_indices_that_torchvision_gives(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", SMALL)
    keys, rows = open_rows(tmp_path / "p")
    by_number = [key for _, key in sorted(zip(rows["number"].tolist(), keys, strict=True))]
    cats = [f"cat/{n}" for n in range(6)] + ["cat/gray", "cat/progressive"]
    dogs = [f"dog/{n}" for n in range(6)] + ["dog/picture", "dog/deeper/still/one"]
    assert by_number == cats + dogs


def test_images_of_other_kinds_are_kept_and_counted(jpeg_folder: Path, tmp_path: Path) -> None:
    result = pack(jpeg_folder, tmp_path / "p", SMALL)
    assert result.by_kernel == 14
    assert sum(result.by_pillow.values()) == 2
    assert result.ignored == {".txt": 1}


def test_size_of_images_is_in_the_index(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", SMALL)
    keys, rows = open_rows(tmp_path / "p")
    row = rows[keys.index("dog/deeper/still/one")]
    assert (row["image.width"], row["image.height"]) == (97, 61)


def test_shape_is_noted_when_all_images_share_it(tmp_path: Path) -> None:
    for n in range(3):
        save_image(tmp_path / "s" / "a" / f"{n}.jpg", n, width=32, height=24)
    pack(tmp_path / "s", tmp_path / "p", PackOptions(shard_bytes=2000, workers=1))
    assert Pack(tmp_path / "p").manifest.fields[0].shape == (24, 32)


def test_shape_is_not_noted_when_images_differ(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", SMALL)
    assert Pack(tmp_path / "p").manifest.fields[0].shape is None


def test_flat_folder_is_packed_without_labels(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "a.jpg", 1)
    result = pack(tmp_path / "s", tmp_path / "p", SMALL)
    assert result.fields == {"image": "image"}
    assert result.classes is None


def test_number_of_workers_does_not_change_a_byte(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.packing.workers.start_worker", start_worker)  # as users have them
    (jpeg_folder / "cat" / "bad.jpg").write_text("no image")
    pack(jpeg_folder, tmp_path / "one", PackOptions(shard_bytes=10_000, workers=1))
    pack(jpeg_folder, tmp_path / "two", PackOptions(shard_bytes=10_000, workers=2))
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")
    assert len(read_tree(tmp_path / "one")) > 6


def test_times_of_files_do_not_change_a_byte(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "one", SMALL)
    os.utime(jpeg_folder / "cat" / "1.jpg", (1, 1))
    pack(jpeg_folder, tmp_path / "two", SMALL)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")


def test_seed_decides_the_order(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "one", SMALL)
    pack(jpeg_folder, tmp_path / "two", PackOptions(shard_bytes=10_000, workers=1, seed=1))
    one, two = open_rows(tmp_path / "one")[0], open_rows(tmp_path / "two")[0]
    assert one != two
    assert sorted(one) == sorted(two)


def test_order_is_frozen() -> None:
    # A change here changes every pack that anybody makes again.
    assert order_samples(0, 8, 8, seed=0).tolist() == [2, 5, 0, 6, 3, 1, 7, 4]
    assert sorted(order_samples(0, 1000, 1000, seed=7).tolist()) == list(range(1000))


def test_shards_keep_to_the_asked_size(jpeg_folder: Path, tmp_path: Path) -> None:
    result = pack(jpeg_folder, tmp_path / "p", SMALL)
    sizes = [path.stat().st_size for path in (tmp_path / "p").glob("*.tar")]
    assert len(sizes) == result.shards > 1
    assert max(sizes) <= 10_000


def test_tar_lists_every_field_of_a_sample_side_by_side(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1))
    listed = subprocess.run(
        ["tar", "tf", tmp_path / "p" / "shard-00000.tar"], capture_output=True, text=True, check=True
    )
    names = listed.stdout.splitlines()
    assert len(names) == 32
    assert all(a.partition(".")[0] + ".cls" == b for a, b in zip(names[::2], names[1::2], strict=True))
    assert {"cat/0.jpg", "dog/1.jpeg", "dog/picture.png"} <= set(names)


@pytest.mark.filterwarnings("ignore")
def test_webdataset_streams_a_pack(jpeg_folder: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    pack(jpeg_folder, tmp_path / "p", SMALL)
    shards = sorted(str(path) for path in (tmp_path / "p").glob("*.tar"))
    samples = list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))
    assert len(samples) == 16
    for sample in samples:
        assert int(sample["cls"]) == int(sample["__key__"].startswith("dog"))
        assert {"jpg", "jpeg", "png"} & set(sample)


def test_two_processes_read_a_pack_at_once(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", SMALL)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        one, two = executor.map(read_keys, [tmp_path / "p"] * 2)
    assert one == two
    assert len(one) == 16


@pytest.mark.parametrize(
    ("content", "reason", "code"),
    [
        (b"", "the file is empty", "empty"),
        (b"hello, I am a text\n" * 9, "not a JPEG", "corrupt"),
        ("half", "JPEG ends", "truncated"),
    ],
    ids=["empty", "text", "half"],
)
def test_bad_image_is_rejected_in_words_and_packing_goes_on(
    jpeg_folder: Path, tmp_path: Path, content: bytes | str, reason: str, code: str
) -> None:
    whole = (jpeg_folder / "cat" / "0.jpg").read_bytes()
    (jpeg_folder / "cat" / "bad.jpg").write_bytes(
        content if isinstance(content, bytes) else whole[: len(whole) // 2]
    )
    result = pack(jpeg_folder, tmp_path / "p", SMALL)
    assert result.samples == 16
    (rejection,) = result.rejected
    assert (rejection.path, rejection.field) == ("cat/bad.jpg", "image")
    assert reason in rejection.reason
    line = json.loads((tmp_path / "p" / "rejected.jsonl").read_text())
    assert line == {
        "path": "cat/bad.jpg", "field": "image", "reason": rejection.reason, "code": code,
    }  # fmt: skip


def test_image_that_only_pillow_forgives_is_kept_and_listed(jpeg_folder: Path, tmp_path: Path) -> None:
    whole = (jpeg_folder / "cat" / "0.jpg").read_bytes()
    (jpeg_folder / "cat" / "cut.jpg").write_bytes(whole[:1000] + b"\xff\xd9" + whole[1000:])  # ends too early
    result = pack(jpeg_folder, tmp_path / "p", SMALL)
    assert [(d.path, d.field) for d in result.damaged] == [("cat/cut.jpg", "image")]
    assert result.samples == 17


def test_dangling_link_is_rejected(jpeg_folder: Path, tmp_path: Path) -> None:
    (jpeg_folder / "cat" / "gone.jpg").symlink_to("nowhere")
    result = pack(jpeg_folder, tmp_path / "p", SMALL)
    assert [(r.path, r.reason) for r in result.rejected] == [("cat/gone.jpg", "is a link to nothing")]


def test_pipe_with_the_name_of_an_image_is_rejected(jpeg_folder: Path, tmp_path: Path) -> None:
    os.mkfifo(jpeg_folder / "cat" / "pipe.jpg")
    result = pack(jpeg_folder, tmp_path / "p", SMALL)
    assert [(r.path, r.reason) for r in result.rejected] == [("cat/pipe.jpg", "is not a regular file")]


def test_file_that_changes_while_it_is_packed_is_rejected(jpeg_folder: Path, tmp_path: Path) -> None:
    def grow(tick: Tick) -> None:
        if tick.stage == "packing" and tick.done == 0:
            with open(jpeg_folder / "cat" / "0.jpg", "ab") as file:
                file.write(b"more")

    result = pack(jpeg_folder, tmp_path / "p", SMALL, watch=grow)
    assert [r.path for r in result.rejected] == ["cat/0.jpg"]
    assert "changed while it was packed" in result.rejected[0].reason


def test_shard_whose_samples_are_all_rejected_is_empty_and_the_pack_is_good(
    jpeg_folder: Path, tmp_path: Path
) -> None:
    (jpeg_folder / "cat" / "bad.jpg").write_text("no image")
    result = pack(jpeg_folder, tmp_path / "p", PackOptions(shard_bytes=1, workers=1))
    assert result.shards == 17
    assert verify(tmp_path / "p", workers=1).problems == ()
    assert describe(tmp_path / "p").samples == 16
    assert len(open_rows(tmp_path / "p")[0]) == 16


def test_source_where_all_is_rejected_leaves_nothing(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "a" / "1.jpg", 1).write_text("no image")
    with pytest.raises(SourceError, match=r"all 1 were rejected: 'a/1\.jpg'"):
        pack(tmp_path / "s", tmp_path / "p", SMALL)
    assert not (tmp_path / "p").exists()


def test_links_to_files_and_folders_are_followed(jpeg_folder: Path, tmp_path: Path) -> None:
    save_image(tmp_path / "elsewhere" / "x.jpg", 50)
    (jpeg_folder / "cat" / "linked.jpg").symlink_to(tmp_path / "elsewhere" / "x.jpg")
    (jpeg_folder / "emu").symlink_to(tmp_path / "elsewhere")
    keys, _ = (pack(jpeg_folder, tmp_path / "p", SMALL), open_rows(tmp_path / "p"))[1]
    assert {"cat/linked", "emu/x"} <= set(keys)


def test_link_that_leads_back_up_is_not_followed(jpeg_folder: Path, tmp_path: Path) -> None:
    (jpeg_folder / "cat" / "loop").symlink_to(jpeg_folder)
    assert pack(jpeg_folder, tmp_path / "p", SMALL).samples == 16


def test_hidden_files_are_left_out(jpeg_folder: Path, tmp_path: Path) -> None:
    save_image(jpeg_folder / "cat" / "._1.jpg", 1)
    save_image(jpeg_folder / ".thumbs" / "1.jpg", 1)
    result = pack(jpeg_folder, tmp_path / "p", SMALL)
    assert (result.samples, result.classes) == (16, 2)


def test_parts_of_a_dataset_become_one_pack_with_its_split(tmp_path: Path) -> None:
    for number, path in enumerate(("train/cat/1", "train/dog/2", "train/dog/3", "val/dog/4", "val/emu/5")):
        save_image(tmp_path / "s" / f"{path}.jpg", number)
    result = pack(tmp_path / "s", tmp_path / "p")
    assert (result.samples, result.classes) == (5, 3)
    whole = Loader(tmp_path / "p", fields=("number", "label", "split"), shuffle=False, output="numpy")
    (batch,) = whole
    rows = sorted(zip(*(values.tolist() for values in batch), strict=True))
    assert rows == [(0, 0, 0), (1, 1, 0), (2, 1, 0), (3, 1, 1), (4, 2, 1)]
    assert whole.classes == ["cat", "dog", "emu"]
    validation = Loader(tmp_path / "p", fields=("key",), split="val", output="numpy")
    assert sorted(key for (keys,) in validation for key in keys) == ["val/dog/4", "val/emu/5"]


def test_a_folder_without_images_beside_the_parts_does_not_make_them_classes(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "train" / "cat" / "1.jpg", 1)
    save_image(tmp_path / "s" / "val" / "cat" / "2.jpg", 2)
    (tmp_path / "s" / "annotations").mkdir()
    (tmp_path / "s" / "annotations" / "boxes.json").write_text("{}")
    pack(tmp_path / "s", tmp_path / "p")
    assert Loader(tmp_path / "p", output="numpy").classes == ["cat"]
    assert len(Dataset(tmp_path / "p", split="train")) == 1


def test_a_folder_with_images_beside_the_parts_does_not_make_them_classes(tmp_path: Path) -> None:
    for number, name in enumerate(["train/cat/1.jpg", "test/cat/2.jpg", "extra/3.jpg"]):
        save_image(tmp_path / "s" / name, number)
    with pytest.raises(
        SourceError, match=r"holds the parts of a dataset \(test, train\), and 'extra' beside them"
    ) as caught:
        pack(tmp_path / "s", tmp_path / "p")
    assert "move 'extra' elsewhere" in str(caught.value.hint)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for number, name in enumerate(["train/steam/1.jpg", "train/2.jpg", "test/3.jpg", "bus/4.jpg"]):
        save_image(tmp_path / "s" / name, number)
    pack(tmp_path / "s", tmp_path / "p")
    assert Dataset(tmp_path / "p").classes == ["bus", "test", "train"]


def test_ls_counts_the_parts_that_folders_were(tmp_path: Path) -> None:
    for number, name in enumerate(["train/cat/1.jpg", "train/dog/2.jpg", "test/cat/3.jpg"]):
        save_image(tmp_path / "s" / name, number)
    pack(tmp_path / "s", tmp_path / "p")
    assert describe(tmp_path / "p").column_counts == {"split": {"test": 1, "train": 2}}


def test_a_part_without_class_folders_beside_one_that_has_some_is_refused(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "train" / "cat" / "1.jpg", 1)
    save_image(tmp_path / "s" / "test" / "1.jpg", 1)
    with pytest.raises(SourceError, match=r"s/test has images without a class folder, as '1.jpg'") as caught:
        pack(tmp_path / "s", tmp_path / "p")
    assert caught.value.hint == f"pack it by itself: feedrate pack {tmp_path / 's' / 'test'} PACK-test"


def test_damaged_files_of_a_part_are_named_with_it(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "train" / "cat" / "1.jpg", 1)
    (tmp_path / "s" / "train" / "cat" / "2.jpg").symlink_to("nowhere")
    result = pack(tmp_path / "s", tmp_path / "p")
    assert [one.path for one in result.rejected] == ["train/cat/2.jpg"]


def test_images_beside_class_folders_are_refused(jpeg_folder: Path, tmp_path: Path) -> None:
    save_image(jpeg_folder / "stray.jpg", 1)
    with pytest.raises(
        SourceError, match=r"has class folders, but 1 image beside them, without a label: 'stray\.jpg'"
    ):
        pack(jpeg_folder, tmp_path / "p")


def test_folder_without_images_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.txt").write_text("x")
    with pytest.raises(SourceError, match="no images in") as caught:
        pack(tmp_path / "s", tmp_path / "p")
    assert caught.value.hint == "it holds other files: 1 with .txt"
    assert not (tmp_path / "p").exists()


def test_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no dataset at .*nowhere"):
        pack(tmp_path / "nowhere", tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("target", "words"), [("photos", "is the source itself"), ("photos/p", "lies inside the source")]
)
def test_target_inside_the_source_is_refused(jpeg_folder: Path, target: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pack(jpeg_folder, jpeg_folder.parent / target)
    assert not (jpeg_folder / "p").exists()


def test_source_inside_the_target_is_refused(jpeg_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"the source .* lies inside"):
        pack(jpeg_folder, jpeg_folder.parent)


def test_folder_with_something_else_is_refused_and_untouched(jpeg_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "thesis.tex").write_text("all my work")
    with pytest.raises(AlreadyExists, match=r"is not empty and not a pack: it holds 'thesis\.tex'"):
        pack(jpeg_folder, tmp_path / "p")
    assert read_tree(tmp_path / "p") == {"thesis.tex": b"all my work"}


def test_file_as_target_is_refused(jpeg_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("x")
    with pytest.raises(AlreadyExists, match="is a file; a pack is a folder"):
        pack(jpeg_folder, tmp_path / "p")


ODD_NAMES: Sequence[bytes] = (
    b"with space.jpg", b"new\nline.jpg", b"\xff\xfe.jpg", "ünï-日本.jpg".encode(),
    b"a.b.jpg", b"a.b.png", b"a_b.jpg", b"%41.jpg", b"UPPER.JPG", b"x" * 250 + b".jpg", b"-rf.jpg", b"~2.jpg",
    b"a~2.jpg", b"'quote\".jpg", b"back\\slash.jpg",
)  # fmt: skip


def test_odd_file_names_come_back_exactly(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path / "s")
    for folder in (b"plain", b"od d\xfe", b"__x__", b"dots.in.it"):
        os.makedirs(os.path.join(root, folder))
        for n, name in enumerate(ODD_NAMES):
            save_image(tmp_path / "made.png", n, width=8, height=8)
            os.rename(tmp_path / "made.png", os.path.join(root, folder, name))
    result = pack(tmp_path / "s", tmp_path / "p", SMALL)
    assert result.samples == 4 * len(ODD_NAMES)
    assert verify(tmp_path / "p", workers=1).problems == ()
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "s")


def test_very_long_paths_come_back_exactly(tmp_path: Path) -> None:
    deep = tmp_path / "s" / "/".join(["d" * 200] * 8)
    save_image(deep / "x.jpg", 1)
    pack(tmp_path / "s", tmp_path / "p", SMALL)
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "s")


def test_tar_headers_carry_no_owner_and_no_time(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1))
    with tarfile.open(tmp_path / "p" / "shard-00000.tar") as archive:
        facts = {(m.mode, m.uid, m.gid, m.uname, m.gname, m.mtime) for m in archive}
    assert facts == {(0o644, 0, 0, "", "", 0)}


def test_watch_sees_all_samples_in_the_end(jpeg_folder: Path, tmp_path: Path) -> None:
    ticks: list[Tick] = []
    pack(jpeg_folder, tmp_path / "p", SMALL, watch=ticks.append)
    assert (ticks[-1].stage, ticks[-1].done, ticks[-1].total) == ("packing", 16, 16)
    assert ticks[-1].done_bytes == ticks[-1].total_bytes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed must be at least 0"),
        ({"shard_bytes": 0}, "shard_bytes must be at least 1, got 0"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"label_separator": ""}, "an empty --label-separator separates nothing"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PackOptions(**options)


def run_python(code: str, *words: str) -> str:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


ENDING = ("feedrate.packing.check.quality_report", "feedrate.format.pack", "feedrate.packing.results")
MAKING = ("feedrate.packing.build.engine", "feedrate.packing.build.shard", "pyarrow")


@pytest.mark.parametrize(
    ("module", "later"),
    [("build.pack", {*MAKING, *ENDING, "PIL"}), ("build.engine", {*ENDING, "pyarrow", "PIL"})],
)
def test_listing_begins_before_what_makes_shards_is_loaded_and_these_before_what_ends_a_pack(
    module: str, later: set[str]
) -> None:
    code = f"import sys, feedrate.packing.{module}; print(sorted({later} & set(sys.modules)))"
    assert run_python(code) == "[]\n"


def test_packing_class_folders_loads_nothing_that_other_sources_formats_and_commands_need(
    jpeg_folder: Path, tmp_path: Path
) -> None:
    others = {
        "concurrent.futures", "csv", "h5py", "multiprocessing", "PIL", "rich", "zipfile",
        "feedrate.format.containers.hdf5", "feedrate.format.containers.tfrecord",
        "feedrate.packing.build.hdf5_join", "feedrate.packing.check.verify",
        "feedrate.packing.indexing.local", "feedrate.source.table",
    }  # fmt: skip
    code = (
        "import sys; from feedrate.cli import main; main(['pack', *sys.argv[1:]]);"
        f"print(sorted({others} & set(sys.modules)))"
    )
    (jpeg_folder / "cat" / "progressive.jpg").unlink()  # that is for Pillow
    assert run_python(code, str(jpeg_folder), str(tmp_path / "p")).endswith("\n[]\n")


def test_few_dataclasses_are_made_before_the_first_shard() -> None:
    """Python takes as long for one as packing a hundred small files does: records inside are named tuples."""
    code = (
        "import dataclasses, sys, feedrate.packing.build.pack, feedrate.packing.build.engine;"
        "loaded = [vars(m).values() for n, m in sys.modules.items() if n.startswith('feedrate.')];"
        "print(*sorted({c.__name__ for v in loaded for c in v"
        " if isinstance(c, type) and dataclasses.is_dataclass(c)}))"
    )
    # Options that check themselves, what stands in pack.json, what is returned, what has a length or changes.
    expected = {
        "ColumnPart", "Engine", "Field", "FieldSpec", "ImageFiles", "IndexPart", "Job", "Loaded", "Manifest",
        "PackFile", "PackOptions", "Ranges", "Recode", "Rejection", "Shard", "SourceOptions", "Tick",
    }  # fmt: skip
    assert set(run_python(code).split()) == expected
