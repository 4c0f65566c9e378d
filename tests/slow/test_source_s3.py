# SPDX-License-Identifier: Apache-2.0
"""A real S3 server, by way of s3fs: what is packed from there is what lies there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate import PackOptions, pack
from feedrate.errors import NotFound, StorageError
from feedrate.remote.addresses import Place
from support.range_server import serve
from support.sources import dump_example, jpeg, read_pack, write_tar, write_tfrecord, write_zip

pytestmark = [
    pytest.mark.slow,
    # Of moto and botocore, not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TREE = {f"{name}/{n}.jpg": jpeg(n) for n, name in enumerate(["ant", "bee"] * 20)}


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder that the bucket is a copy of."""
    server_module = pytest.importorskip("moto.server", reason="moto is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    folder = tmp_path / "bucket"
    for name, data in TREE.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_bytes(data)
    write_zip(folder / "d.zip", TREE)
    (folder / "shards").mkdir()
    for part in range(2):
        files = {
            f"{n}.{ext}": data for n in range(9) for ext, data in (("jpg", jpeg(n)), ("cls", b"%d" % part))
        }
        write_tar(folder / "shards" / f"{part}.tar", files)
    write_tfrecord(
        folder / "d.tfrecord", [dump_example({"image": [jpeg(n)], "label": [n]}) for n in range(9)]
    )
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    s3fs.S3FileSystem.clear_instance_cache()
    s3 = s3fs.S3FileSystem()
    if not s3.exists("data"):  # the server's memory outlives it
        s3.mkdir("data")
    s3.put(str(folder), "data/set", recursive=True)
    yield folder
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_an_s3_bucket_is_packed_like_a_folder(bucket: Path, tmp_path: Path) -> None:
    for kind in ("tree", "d.zip", "shards", "shards/{0..1}.tar", "d.tfrecord"):
        name = kind.replace("/", "-")
        pack(f"{bucket}/{kind}", tmp_path / f"here-{name}", PackOptions(workers=1))
        result = pack(f"s3://data/set/{kind}", tmp_path / f"there-{name}", PackOptions(workers=1))
        assert result.rejected == ()
        assert read_pack(tmp_path / f"there-{name}") == read_pack(tmp_path / f"here-{name}")


def test_what_is_not_in_the_bucket_is_not_found(bucket: Path, tmp_path: Path) -> None:
    assert bucket.exists()
    with pytest.raises(NotFound, match=r"no dataset at s3://data/no\.zip"):
        pack("s3://data/no.zip", tmp_path / "p")


def test_a_place_that_asks_once_leaves_it_to_its_user_to_ask_s3_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    with serve(tmp_path) as server:
        settings = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "ENDPOINT_URL": server.url}
        for name, value in settings.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        server.fault = lambda _path, _number: "error"
        place = Place("s3://bucket", {"skip_instance_cache": True}, asks_once=True)
        with pytest.raises(StorageError, match="cannot read s3://bucket/file"):
            place.read(b"file", 0, 10)
        assert [path for path, _ in server.asked] == ["/bucket/file"]
