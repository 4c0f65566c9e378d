# SPDX-License-Identifier: Apache-2.0
"""Video, sound and streaming libraries: what they read and decode inside a fetch is timed by name.

Of WebDataset the real package is used. The others are not installed where tests run: modules of the same
names, classes and methods stand in for them. The patches were tried on the real ones: soundfile 0.14.0,
PyAV 18.1.0, torchcodec 0.13.0, datasets 5.2.0, litdata 0.2.76, mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.hook.feedrate_hook.record import parts
from feedrate.doctor.hook.feedrate_hook.record.parts import Fetch
from support.hooked import PREAMBLE, Run, names_of, run_script
from support.images import save_image

pytest.importorskip("torch", reason="torch is not installed")

LIBRARIES = {
    "soundfile.py": """
class SoundFile:
    def __init__(self, path): self.path = path
    def read(self, frames=-1): return 1.0
def read(path): return SoundFile(path).read()
""",
    "av/__init__.py": "from av.container.core import open",
    "av/container/__init__.py": "",
    "av/container/core.py": """
def open(path):
    from av.container.input import InputContainer
    return InputContainer()
""",
    "av/container/input.py": """
from av.packet import Packet
class InputContainer:
    closed = 0
    def decode(self, video=0):
        try:
            yield from (1.0, 2.0, 3.0)
        finally:
            InputContainer.closed += 1
    def demux(self, video=0):
        yield Packet()
    def seek(self, offset): pass
""",
    "av/packet.py": "class Packet:\n    def decode(self): return [4.0]",
    "torchcodec/decoders/__init__.py": """
from ._video_decoder import VideoDecoder
from ._audio_decoder import AudioDecoder
""",
    "torchcodec/decoders/_video_decoder.py": """
class VideoDecoder:
    def __init__(self, source): pass
    def __getitem__(self, key): return 1.0
    def get_frames_at(self, indices): return 1.0
""",
    "torchcodec/decoders/_audio_decoder.py": """
class AudioDecoder:
    def __init__(self, source): pass
    def get_all_samples(self): return 1.0
""",
    "datasets/formatting/formatting.py": """
def query_table(table, key): return table[key]
class PythonArrowExtractor: pass
class NumpyArrowExtractor:
    def extract_row(self, table): return table
""",
    "datasets/formatting/torch_formatter.py": """
from datasets.formatting.formatting import NumpyArrowExtractor
class TorchFormatter:
    def format_row(self, table):
        from datasets.features.image import Image
        return Image().decode_example(NumpyArrowExtractor().extract_row(table))
""",
    "datasets/features/image.py": """
class Image:
    def decode_example(self, path):
        import PIL.Image
        image = PIL.Image.open(path)
        image.load()
        return image
""",
    "litdata/streaming/reader.py": """
from litdata.streaming.item_loader import PyTreeLoader
class BinaryReader:
    def read(self, index): return PyTreeLoader().deserialize(b"")
""",
    "litdata/streaming/item_loader.py": """
class PyTreeLoader:
    def deserialize(self, data): return 1.0
""",
    "streaming/base/dataset.py": """
from streaming.base.format.mds.reader import MDSReader
class StreamingDataset:
    def prepare_shard(self, shard): pass
    def get_item(self, index):
        self.prepare_shard(0)
        return MDSReader().decode_sample(MDSReader().get_sample_data(index))
""",
    "streaming/base/format/mds/reader.py": """
class MDSReader:
    def get_sample_data(self, index): return b""
    def decode_sample(self, data): return 1.0
""",
}

SCRIPT = (
    PREAMBLE
    + """
import av, soundfile
from PIL import Image
from av.container.input import InputContainer
from datasets.formatting import formatting, torch_formatter
from litdata.streaming.reader import BinaryReader
from streaming.base.dataset import StreamingDataset
from torchcodec.decoders import AudioDecoder, VideoDecoder

class Clips(Dataset):
    def __len__(self): return 6

    def __getitem__(self, index):
        path = sys.argv[1]
        total = soundfile.read(path) + soundfile.SoundFile(path).read(10)
        total += sum(av.open(path).decode(video=0))
        av.open(path).seek(3)
        total += sum(frame for packet in av.open(path).demux() for frame in packet.decode())
        video = VideoDecoder(path)
        total += video[0] + video.get_frames_at([1, 2]) + AudioDecoder(path).get_all_samples()
        table = formatting.query_table([path] * 6, index)
        total += torch_formatter.TorchFormatter().format_row(table).width
        total += BinaryReader().read(index) + StreamingDataset().get_item(index)
        return torch.tensor(total)

for batch in DataLoader(Clips(), batch_size=3):
    print(batch.tolist(), InputContainer.closed)
"""
)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("libraries")
    for name, text in LIBRARIES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    save_image(folder / "one.jpg", 1)
    run = run_script(folder, SCRIPT, str(folder / "one.jpg"))
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    return run


def test_reading_and_decoding_of_every_library_has_a_name(clips: Run) -> None:
    names = {name for name in names_of(clips.main, layout.PART) if not name.startswith("collate")}
    assert names == {
        "decode:soundfile.read",
        "decode:soundfile.SoundFile.read",
        "read:av.open",
        "decode:av.decode",
        "read:av.demux",
        "read:av.seek",
        "read:torchcodec.VideoDecoder",
        "read:torchcodec.AudioDecoder",
        "decode:torchcodec.__getitem__",
        "decode:torchcodec.get_frames_at",
        "decode:torchcodec.get_all_samples",
        "read:datasets.query_table",
        "transform:datasets.to_torch",
        "read:datasets.extract",
        "decode:datasets.Image",
        "read:PIL.Image.open",
        "decode:PIL",
        "read:litdata",
        "decode:litdata.deserialize",
        "read:streaming.prepare_shard",
        "read:streaming.get_sample_data",
        "decode:streaming.decode_sample",
    }


def test_a_sound_that_is_read_in_one_call_is_one_part(clips: Run) -> None:
    calls = {clips.main.name(p["name"]): int(p["a"]) for p in clips.main.of(layout.PART)}
    assert calls["decode:soundfile.read"] == 3
    assert calls["decode:soundfile.SoundFile.read"] == 3  # the three that the dataset opens itself


def test_the_samples_are_those_of_the_bare_script(clips: Run) -> None:
    folder = clips.folder.parent
    bare = run_script(folder, SCRIPT, str(folder / "one.jpg"), is_hooked=False)
    assert clips.stdout == bare.stdout


def test_files_that_a_decoder_opens_by_itself_are_noted(clips: Run) -> None:
    assert {Path(name).name for name in names_of(clips.main, layout.OPENED)} == {"one.jpg"}


def test_each_frame_of_a_generator_belongs_to_the_fetch_that_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts.here, "is_fetching", True)
    decode = parts.timed_generator("decode:frames")(lambda: (number for number in range(3)))
    frames = decode()
    for _ in range(2):
        fetch = Fetch((0, 0, 0))
        monkeypatch.setitem(parts.open_fetches, parts.get_ident(), fetch)
        next(frames)
        assert fetch.times["decode:frames"][3] == 1


def test_a_generator_that_is_left_early_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.here, "is_fetching", True)
    left = []

    def frames() -> object:
        try:
            yield from range(3)
        finally:
            left.append("closed")

    for _ in parts.timed_generator("decode:frames")(frames)():
        break
    assert left == ["closed"]


def test_what_a_function_returns_that_is_no_generator_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts.here, "is_fetching", True)
    listed = [1, 2]
    assert parts.timed_generator("decode:frames")(lambda: listed)() is listed


def test_a_compiled_class_that_takes_no_wrapper_is_left_alone() -> None:
    assert not parts.takes_attributes(io.BytesIO)
    assert parts.takes_attributes(tarfile.TarFile)
    assert parts.takes_attributes(tarfile)


WEBLOADER = (
    PREAMBLE
    + """
import io, tarfile
import webdataset as wds

with tarfile.open("shard.tar", "w") as tar:
    for number in range(12):
        for name in (f"{number}.jpg", f"{number}.cls"):
            data = open(sys.argv[1], "rb").read() if name.endswith("jpg") else b"1"
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
dataset = wds.WebDataset("shard.tar", shardshuffle=False).decode("torchrgb").to_tuple("jpg", "cls")
for images, classes in wds.WebLoader(dataset, batch_size=3).unbatched().batched(6):
    print(tuple(images.shape), classes.tolist())
"""
)


def test_the_dataloader_inside_a_webloader_is_watched(tmp_path: Path) -> None:
    pytest.importorskip("webdataset", reason="WebDataset is not installed: pip install webdataset")
    save_image(tmp_path / "one.jpg", 1)
    run = run_script(tmp_path, WEBLOADER, str(tmp_path / "one.jpg"))
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    (loader,) = run.facts("loader")
    assert loader["iterable"]
    assert loader["made_at"].startswith(str(tmp_path / "script.py"))
    waits = run.main.of(layout.WAIT)
    assert [int(wait["a"]) for wait in waits] == [3, 3, 3, 3, -1]  # before they are put together anew
    names = set(names_of(run.main, layout.PART))
    assert {"read:tarfile", "decode:webdataset", "decode:PIL"} <= names
