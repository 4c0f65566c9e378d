# SPDX-License-Identifier: Apache-2.0
"""`feedrate index ADDRESS`: shards are read where they lie, as shards of this machine are."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from feedrate import (
    Dataset,
    Loader,
    RandomResizedCrop,
    add_column,
    append,
    index,
    set_entries,
    unpack,
    verify,
)
from feedrate.errors import (
    AlreadyExists,
    BadSample,
    NotFound,
    PackError,
    SourceError,
    StorageError,
    UsageError,
)
from feedrate.format.manifest import dump_manifest, parse_manifest, read_manifest
from feedrate.packing.check.describe import describe, warm
from feedrate.packing.indexing import remote
from feedrate.packing.results import IndexResult
from feedrate.progress import Tick
from feedrate.scratch.eviction import SourceUnseen
from support.damage import read_part, without_digest
from support.range_server import RangeServer, serve
from support.scratch_copies import evict_copy, stage
from support.scratches import process, wait_for
from support.sources import dump_example, jpeg, write_tar, write_tfrecord, write_zip

pytestmark = pytest.mark.usefixtures("no_fsync")

SHARDS, EACH = 3, 8
WORDS = (("cat", "ant"), ("dog", "cat"), ("bee", "dog"))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Shards as WebDataset has them; no two of them know the same classes."""
    folder = tmp_path / "served" / "train"
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        files = {}
        for n in range(EACH):
            files[f"{n:03d}.jpg"] = jpeg(shard * EACH + n)
            files[f"{n:03d}.cls"] = WORDS[shard][n % 2].encode()
            files[f"{n:03d}.txt"] = f"sample {n} of {shard}".encode()
            files[f"{n:03d}.count"] = b"2.5" if shard == 1 else b"%d" % n
        write_tar(folder / f"{shard:03d}.tar", files)
    return folder


@pytest.fixture
def server(shards: Path) -> Iterator[RangeServer]:
    with serve(shards.parent) as server:
        yield server


def sample(key: str, image: bytes, label: bytes = b"emu") -> dict[str, bytes]:
    return {f"{key}.jpg": image, f"{key}.cls": label, f"{key}.txt": b"new", f"{key}.count": b"0.5"}


def address(server: RangeServer) -> str:
    return f"{server.url}/train/{{000..{SHARDS - 1:03d}}}.tar"


def make(server: RangeServer, tmp_path: Path, **options: Any) -> IndexResult:
    return index(address(server), tmp_path / "index", workers=1, **options)


def here(shards: Path, tmp_path: Path) -> Path:
    index(f"{shards}/*.tar", tmp_path / "here", workers=1)
    return tmp_path / "here"


def open_loader(pack: Path, **options: Any) -> Loader:
    fields = ("image", "label", "text", "key", "number", "count")
    return Loader(pack, 5, image=RandomResizedCrop(16), fields=fields, output="numpy", **options)


def load(pack: Path, **options: Any) -> list[Any]:
    with open_loader(pack, **options) as loader:
        return list(loader)


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a, b)


def test_batches_are_those_of_an_index_of_a_folder(server: RangeServer, shards: Path, tmp_path: Path) -> None:
    result = make(server, tmp_path)
    assert (result.samples, result.files, result.classes) == (SHARDS * EACH, SHARDS, 4)
    assert_same(load(tmp_path / "index"), load(here(shards, tmp_path)))


def test_rows_of_the_index_are_those_of_an_index_of_a_folder(
    server: RangeServer, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.packing.indexing.local._MOST_SAMPLES", 5)  # several parts per shard
    make(server, tmp_path)
    mine, theirs = read_manifest(tmp_path / "index"), read_manifest(here(shards, tmp_path))
    assert mine.fields == theirs.fields
    assert len(mine.shards) == len(theirs.shards) == 2 * SHARDS
    for one, other in zip(mine.shards, theirs.shards, strict=True):
        a = read_part(tmp_path / "index" / one.index.name, mine.fields)
        b = read_part(tmp_path / "here" / other.index.name, theirs.fields)
        assert np.array_equal(a.rows, b.rows)
        assert a.variable == b.variable
        assert {**a.metadata, "plan": ""} == {**b.metadata, "plan": ""}
        assert (one.name, one.size_bytes, one.samples) == (other.name, other.size_bytes, other.samples)
        assert one.folder == f"{server.url}/train"


def test_an_epoch_is_gone_on_with_where_it_was_left(server: RangeServer, tmp_path: Path) -> None:
    make(server, tmp_path)
    whole = load(tmp_path / "index", seed=3)
    with open_loader(tmp_path / "index", seed=3) as loader:
        batches = iter(loader)
        first = [next(batches), next(batches)]
        state = loader.state_dict()
    with open_loader(tmp_path / "index", seed=3) as loader:
        loader.load_state_dict(state)
        assert_same([*first, *loader], whole)


def test_tfrecord_files_give_the_batches_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    for shard in range(2):
        examples = [
            {"image": [jpeg(4 * shard + n)], "label": [n], "weight": [n + 0.5 * shard]} for n in range(4)
        ]
        write_tfrecord(folder / f"{shard}.tfrecord", list(map(dump_example, examples)))
    with serve(folder) as server:
        index(f"{server.url}/{{0..1}}.tfrecord", tmp_path / "index", workers=1)
        index(f"{folder}/*.tfrecord", tmp_path / "here", workers=1)
        there, near = (read_manifest(tmp_path / name) for name in ("index", "here"))
        assert there.fields == near.fields
        fields = ("image", "label", "weight", "key")
        options: dict[str, Any] = {"image": RandomResizedCrop(16), "fields": fields, "output": "numpy"}
        with Loader(tmp_path / "index", 3, **options) as a, Loader(tmp_path / "here", 3, **options) as b:
            assert_same(list(a), list(b))


def test_a_folder_a_pattern_and_a_file_of_a_store_that_lists(shards: Path, tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(f"{shards}/", "/elsewhere/train", recursive=True)
    try:
        for number, name in enumerate(("train", "train/", "train/*.tar", "train/001.tar")):
            result = index(f"memory://elsewhere/{name}", tmp_path / f"index-{number}", workers=1)
            wanted = EACH if name.endswith("001.tar") else SHARDS * EACH
            assert result.samples == wanted
            assert sum(len(batch[1]) for batch in load(tmp_path / f"index-{number}")) == wanted
    finally:
        store.rm("/elsewhere", recursive=True)


def test_a_shard_is_brought_once_and_whole(
    server: RangeServer, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.source.columns._PEEK_SAMPLES", EACH // 2)
    make(server, tmp_path)
    size_bytes = (shards / "001.tar").stat().st_size
    asked = [wanted for path, wanted in server.asked if path == "/train/001.tar"]
    # And once more at the end, whether it is still the same.
    assert asked == [f"bytes=0-{size_bytes - 1}", "bytes=0-0"]


def test_no_more_shards_are_near_than_there_are_workers(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(*arguments: Any) -> None:
        fetch(*arguments)
        seen.append(len(list((tmp_path / "index").glob(".near-*"))))

    fetch = remote.fetch
    monkeypatch.setattr(remote, "fetch", look)
    make(server, tmp_path)
    assert seen == [1] * SHARDS
    assert sorted(os.listdir(tmp_path / "index")) == [
        *(f"index-0000{i}.arrow" for i in range(3)),
        "pack.json",
    ]


def test_an_interrupted_run_goes_on_with_the_shards_that_it_lacks(
    server: RangeServer, tmp_path: Path
) -> None:
    def interrupt(tick: Tick) -> None:
        if tick.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(server, tmp_path, watch=interrupt)
    with pytest.raises(NotFound, match="unfinished"):
        read_manifest(tmp_path / "index")
    server.asked.clear()
    ticks: list[Tick] = []
    result = make(server, tmp_path, watch=ticks.append)
    assert result.resumed_parts == 2
    assert (ticks[0].done, ticks[0].total) == (2, SHARDS)
    index(address(server), tmp_path / "again", workers=1)
    for path in (tmp_path / "again").iterdir():
        assert (tmp_path / "index" / path.name).read_bytes() == path.read_bytes()


def test_a_killed_run_leaves_nothing_that_stays(server: RangeServer, tmp_path: Path) -> None:
    server.fault = lambda path, _: "stall" if path.endswith("002.tar") and is_begun() else None

    def is_begun() -> bool:
        return len(list((tmp_path / "index").glob("packing.surveys/*.json"))) == 2

    code = "import sys; from feedrate import index; index(sys.argv[1], sys.argv[2], workers=1)"
    with process(code, address(server), tmp_path / "index") as child:
        wait_for(lambda: is_begun() and server.in_flight > 0, "the last shard is asked for")
        child.kill()
        child.wait()
    assert list((tmp_path / "index").glob(".near-*"))
    server.released.set()
    server.fault = lambda *_: None
    assert make(server, tmp_path).resumed_parts == 2
    assert len(os.listdir(tmp_path / "index")) == SHARDS + 1


def test_a_run_is_not_gone_on_with_when_the_shards_are_others(
    server: RangeServer, shards: Path, tmp_path: Path
) -> None:
    def interrupt(tick: Tick) -> None:
        if tick.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(server, tmp_path, watch=interrupt)
    write_tar(shards / "001.tar", sample("1", jpeg(1)))
    with pytest.raises(AlreadyExists, match="other names, sizes or times"):
        make(server, tmp_path)


def test_a_server_that_errs_is_asked_again(server: RangeServer, shards: Path, tmp_path: Path) -> None:
    server.fault = lambda _, number: ("error", "cut")[number % 2] if number % 5 == 0 else None
    make(server, tmp_path)
    server.fault = lambda *_: None
    assert_same(load(tmp_path / "index"), load(here(shards, tmp_path)))


def test_rejected_samples_keep_their_numbers(server: RangeServer, shards: Path, tmp_path: Path) -> None:
    files = sample("0", jpeg(0)) | sample("1", b"no image") | {"2.jpg": jpeg(2), "2.cls": b"emu"}
    write_tar(shards / "001.tar", files)
    result = make(server, tmp_path)
    assert [rejected.path for rejected in result.rejected] == ["001/2", "001/1.jpg"]
    assert_same(load(tmp_path / "index"), load(here(shards, tmp_path)))
    assert (tmp_path / "index" / "rejected.jsonl").exists()


def test_a_shard_of_another_size_is_refused_when_it_is_opened(
    server: RangeServer, shards: Path, tmp_path: Path
) -> None:
    make(server, tmp_path)
    with open(shards / "001.tar", "ab") as file:
        file.write(bytes(512))
    with pytest.raises(PackError, match=r"train/001\.tar has changed since it was indexed: .* bytes then"):
        Loader(tmp_path / "index", 4)
    assert "has changed" in verify(tmp_path / "index", workers=1).problems[0].text


def test_other_bytes_are_known_when_they_are_read(server: RangeServer, shards: Path, tmp_path: Path) -> None:
    make(server, tmp_path)
    assert verify(tmp_path / "index", workers=1).problems == ()
    data = bytearray((shards / "001.tar").read_bytes())
    at = data.index(jpeg(EACH)) + 200
    data[at] ^= 1
    (shards / "001.tar").write_bytes(data)
    with pytest.raises(BadSample, match=r"train/001\.tar has changed since it was indexed: index it again"):
        load(tmp_path / "index")
    (problem,) = verify(tmp_path / "index", workers=1).problems
    assert problem.file == "001.tar"
    assert "not those that were indexed" in problem.text


def test_a_shard_that_is_gone_is_named(server: RangeServer, shards: Path, tmp_path: Path) -> None:
    make(server, tmp_path)
    (shards / "002.tar").unlink()
    with pytest.raises((NotFound, StorageError), match=r"train/002\.tar"):
        Loader(tmp_path / "index", 4)


def test_dataset_and_ls_take_it(server: RangeServer, tmp_path: Path) -> None:
    make(server, tmp_path)
    assert Dataset(tmp_path / "index", fields=["label"])[0] is not None
    described = describe(tmp_path / "index", samples=1)
    assert (described.samples, described.resident_share) == (SHARDS * EACH, None)
    assert described.first_samples[0].key == "000/000"


def test_columns_are_added_without_the_shards(server: RangeServer, tmp_path: Path) -> None:
    make(server, tmp_path)
    table = tmp_path / "t.csv"
    keys = [line.key for line in describe(tmp_path / "index", samples=SHARDS * EACH).first_samples]
    table.write_text("key,age\n" + "".join(f"{key},{n}\n" for n, key in enumerate(keys)))
    server.asked.clear()
    add_column(tmp_path / "index", table)
    assert server.asked == []
    with Loader(tmp_path / "index", 4, fields=("age",), output="numpy") as loader:
        ages = np.concatenate([batch[0] if isinstance(batch, tuple) else batch for batch in loader])
    assert sorted(ages.reshape(-1).tolist()) == list(range(SHARDS * EACH))


def test_scratch_takes_what_is_read_and_gives_the_same_batches(
    server: RangeServer, shards: Path, tmp_path: Path
) -> None:
    make(server, tmp_path)
    (tmp_path / "scr").mkdir()
    options: dict[str, Any] = {"order": "shuffled", "scratch": str(tmp_path / "scr")}
    wanted = load(here(shards, tmp_path), order="shuffled")
    assert_same(load(tmp_path / "index", **options), wanted)
    copy = stage(tmp_path / "index", tmp_path / "scr")
    server.stop()
    assert_same(load(copy.data), wanted)
    assert read_manifest(copy.data).version == 2


@pytest.fixture
def mixed(server: RangeServer, tmp_path: Path) -> Path:
    """A pack of shards on this machine and elsewhere."""
    make(server, tmp_path)
    (tmp_path / "own").mkdir()
    files: dict[str, bytes] = {}
    for n, word in enumerate((b"ant", b"bee", b"cat", b"dog")):
        files |= sample(str(n), jpeg(90 + n), word)
    write_tar(tmp_path / "own" / "own.tar", files)
    index(tmp_path / "own", workers=1)
    append(tmp_path / "index", tmp_path / "own")
    return tmp_path / "own"


def test_shards_here_and_elsewhere_make_one_pack(mixed: Path, tmp_path: Path) -> None:
    batches = load(mixed)
    keys = sorted(key for batch in batches for key in batch[3])
    assert keys[0] == "0"
    assert len(set(keys)) == SHARDS * EACH + 4
    assert verify(mixed, workers=1).problems == ()
    copy = stage(mixed, tmp_path / "scr")
    assert_same(load(copy.data), batches)


def test_a_copy_of_a_mixed_pack_goes_only_when_all_its_sources_are_seen(
    mixed: Path, server: RangeServer, shards: Path, tmp_path: Path
) -> None:
    copy = stage(mixed, tmp_path / "scr")
    own = tmp_path / "own" / "own.tar"
    own.rename(tmp_path / "away")
    with pytest.raises(SourceUnseen, match=r"own\.tar"):
        evict_copy(copy)
    (tmp_path / "away").rename(own)
    (shards / "001.tar").rename(tmp_path / "away")
    with pytest.raises(SourceUnseen, match="was not seen"):
        evict_copy(copy)
    (tmp_path / "away").rename(shards / "001.tar")
    server.stop()
    with pytest.raises(SourceUnseen, match="was not seen"):
        evict_copy(copy)
    assert copy.is_complete()
    server.start()
    evict_copy(copy)
    assert not copy.folder.exists()


def test_a_copy_stays_when_a_shard_elsewhere_has_other_bytes_of_the_same_number(
    mixed: Path, shards: Path, tmp_path: Path
) -> None:
    copy = stage(mixed, tmp_path / "scr")
    data = bytearray((shards / "001.tar").read_bytes())
    data[1000] ^= 1
    (shards / "001.tar").write_bytes(data)
    with pytest.raises(SourceUnseen, match=r"train/001\.tar was changed after it was copied"):
        evict_copy(copy)
    assert copy.is_complete()


def test_an_index_may_lie_elsewhere_itself(server: RangeServer, shards: Path, tmp_path: Path) -> None:
    make(server, tmp_path)
    shutil.copytree(tmp_path / "index", server.folder / "index")
    with Loader(f"{server.url}/index", 5, fields=("label", "key"), output="numpy") as loader:
        found = list(loader)
    with Loader(here(shards, tmp_path), 5, fields=("label", "key"), output="numpy") as loader:
        assert_same(found, list(loader))


def test_what_needs_the_files_here_says_so(server: RangeServer, tmp_path: Path) -> None:
    make(server, tmp_path)
    for command in (lambda: unpack(tmp_path / "index", tmp_path / "out"), lambda: warm(tmp_path / "index")):
        with pytest.raises((PackError, UsageError), match="not on this machine") as caught:
            command()
        assert "feedrate stage" in str(caught.value.hint)


def test_where_the_index_goes_must_be_said() -> None:
    with pytest.raises(UsageError, match="where should the index go") as caught:
        index("s3://bucket/train-*.tar")
    assert caught.value.hint == "name a folder: feedrate index PATH FOLDER"


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        ("https://me:geheim@host/train.tar", "password"),
        ("sftp://me:geheim@host/train/*.tar", "password"),
        ("https://host/train.tar?X-Amz-Signature=geheim", "query"),
        ("https://host/{0..3}.tar?sig=geheim", "query"),
    ],
)
def test_secrets_in_an_address_are_refused_and_not_repeated(tmp_path: Path, secret: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        index(secret, tmp_path / "index")
    assert "geheim" not in f"{caught.value} {caught.value.hint}"
    assert not (tmp_path / "index").exists()


def test_a_manifest_with_a_secret_or_a_chain_is_damaged(server: RangeServer, tmp_path: Path) -> None:
    make(server, tmp_path)
    text = (tmp_path / "index" / "pack.json").read_bytes()
    assert dump_manifest(parse_manifest(text)) == text
    assert json.loads(text)["version"] == 3
    good = f"{server.url}/train".encode()
    for bad in (b"http://a:b@host/x", b"zip://x::http://host/y", b"http://host/x?y", b"http://host/../x"):
        with pytest.raises(PackError, match="is damaged"):
            parse_manifest(without_digest(text).replace(good, bad))
    with pytest.raises(PackError, match="is damaged"):
        parse_manifest(without_digest(text).replace(b'"container": "ranges"', b'"container": "tfrecord"'))


def test_what_cannot_be_indexed_from_afar_can_be_packed(server: RangeServer, tmp_path: Path) -> None:
    tree = {f"{name}/{n}.jpg": jpeg(n) for n, name in enumerate(["ant", "bee"])}
    write_tar(server.folder / "plain.tar", tree)
    write_zip(server.folder / "d.zip", tree)
    write_tar(server.folder / "d.tar.gz", {"0.jpg": jpeg(0), "0.cls": b"1"}, "w:gz")
    for name, why in (("plain.tar", "neither"), ("d.zip", "neither"), ("d.tar.gz", "compressed")):
        with pytest.raises(SourceError, match=why) as caught:
            index(f"{server.url}/{name}", tmp_path / "index")
        assert "feedrate pack" in str(caught.value.hint)
    assert not (tmp_path / "index").exists()


def test_labels_and_chains_are_refused(server: RangeServer, tmp_path: Path) -> None:
    from feedrate.source.options import SourceOptions

    with pytest.raises(UsageError, match="--labels"):
        index(address(server), tmp_path / "index", options=SourceOptions(labels=tmp_path / "t.csv"))
    with pytest.raises(UsageError, match="inside of another file"):
        index(f"zip://a.tar::{server.url}/d.zip", tmp_path / "index")


def test_a_shard_that_is_not_there_is_named(server: RangeServer, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no dataset at .*/train/003\.tar"):
        index(f"{server.url}/train/{{000..003}}.tar", tmp_path / "index")


def test_a_damaged_shard_is_named_by_its_address(server: RangeServer, shards: Path, tmp_path: Path) -> None:
    whole = (shards / "001.tar").read_bytes()
    (shards / "001.tar").write_bytes(whole[:3000])
    with pytest.raises(SourceError, match=r"http://.*/train/001\.tar"):
        make(server, tmp_path)


def test_a_shard_that_changes_meanwhile_is_noticed(
    server: RangeServer, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(*arguments: Any) -> None:
        fetch(*arguments)
        with open(shards / "000.tar", "ab") as file:
            file.write(bytes(512))

    fetch = remote.fetch
    monkeypatch.setattr(remote, "fetch", change)
    with pytest.raises(StorageError, match=r"train/000\.tar changed while it was indexed"):
        make(server, tmp_path)


def test_a_server_that_goes_away_when_a_shard_has_come_is_waited_for(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = []

    def go_away(*arguments: Any) -> None:
        fetch(*arguments)
        if not timers:
            server.stop()
            timers.append(threading.Timer(0.2, server.start))
            timers[0].start()

    fetch = remote.fetch
    monkeypatch.setattr(remote, "fetch", go_away)
    assert make(server, tmp_path).samples == SHARDS * EACH
    timers[0].join()


def test_a_number_in_one_shard_and_a_word_in_another_are_no_field(
    server: RangeServer, shards: Path, tmp_path: Path
) -> None:
    write_tar(shards / "001.tar", sample("1", jpeg(1), b"7"))
    with pytest.raises(SourceError, match="'label' is a number in some shards and a text in others"):
        make(server, tmp_path)


def test_entry_points_of_shards_elsewhere_are_as_close_as_was_asked_for(
    server: RangeServer, shards: Path, tmp_path: Path
) -> None:
    make(server, tmp_path, entries=16)
    index(f"{shards}/*.tar", tmp_path / "here", entries=16, workers=1)
    found = []
    for folder in (tmp_path / "index", tmp_path / "here"):
        manifest = read_manifest(folder)
        assert manifest.settings["entries"] == 16
        assert {shard.index.entries for shard in manifest.shards} == {16}
        parts = [read_part(folder / shard.index.name, manifest.fields) for shard in manifest.shards]
        found.append([part.variable["image.entries"] for part in parts])
    assert found[0] == found[1]
    with pytest.raises(SourceError, match="is an index of files that are not on this machine"):
        set_entries(tmp_path / "index", "gpu")
