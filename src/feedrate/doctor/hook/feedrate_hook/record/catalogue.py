# SPDX-License-Identifier: Apache-2.0
"""Which functions are timed as readers, decoders and transforms of a fetch, by the module that defines them.

A name that ends in "@" takes the file's path as its first argument and opens it where Python does not see it.
One that ends in "+" calls decoders or readers that have names of their own: its time is what is left without
them.
"""

from __future__ import annotations

import functools
from typing import Any

from .parts import (
    name_chunked_read,
    name_load,
    name_of_class,
    name_resize,
    patch_parts,
    timed,
    timed_generator,
    timed_steps,
)

_LOAD, _BY_CLASS = timed(choose=name_load), timed(choose=name_of_class)


def _all(kind: str, library: str, names: str, owner: str = "") -> list[tuple[str, Any]]:
    return [(f"{owner}{name}", f"{kind}:{library}.{name}") for name in names.split()]


def _same(modules: str, entry: tuple[str, Any]) -> dict[str, list[tuple[str, Any]]]:
    """A function by the module that defines it, and those that hand it on."""
    return {module: [entry] for module in modules.split()}


PARTS: dict[str, list[tuple[str, Any]]] = {
    "PIL.Image": [
        ("open", "read:PIL.Image.open"),
        ("Image.resize", timed(choose=name_resize)),
        *_all("transform", "PIL",
            "convert crop transpose rotate filter transform reduce thumbnail point quantize paste tobytes",
            "Image."),
    ],
    "PIL.ImageFile": [("ImageFile.load", _LOAD)],
    # These decode in a load() of their own.
    **{f"PIL.{kind}ImagePlugin": [(f"{kind}ImageFile.load", _LOAD)] for kind in ("WebP", "Avif", "Tiff")},
    "PIL.ImageOps": _all("transform", "PIL",
        "autocontrast equalize posterize solarize invert mirror flip fit pad expand scale contain grayscale"
        " exif_transpose"),
    "PIL.ImageEnhance": [("_Enhance.enhance", "transform:PIL.enhance")],
    "cv2": [
        ("imread", "decode:cv2.imread@"),
        ("imdecode", "decode:cv2.imdecode"),
        *_all("transform", "cv2",
            "resize cvtColor GaussianBlur medianBlur bilateralFilter blur boxFilter filter2D warpAffine"
            " warpPerspective remap flip rotate copyMakeBorder LUT equalizeHist addWeighted normalize"
            " threshold adaptiveThreshold morphologyEx erode dilate fastNlMeansDenoisingColored Canny Sobel"),
    ],
    "torchvision.io.image": [
        ("read_file", "read:torchvision.io.read_file@"),
        ("read_image", "decode:torchvision.io.read_image@"),
        *_all("decode", "torchvision.io",
            "decode_image decode_jpeg decode_png decode_gif decode_webp decode_avif"),
    ],
    "torchvision.io.video": [("read_video", "decode:torchvision.io.read_video@")],
    "torchvision.transforms.transforms": [("Compose.__call__", timed_steps)],
    "torchvision.transforms.v2._container": [("Compose.forward", timed_steps)],
    # Not scriptable, so nobody hands them to TorchScript; used outside Compose by segmentation code.
    "torchvision.transforms.functional": _all(
        "transform", "torchvision", "to_tensor pil_to_tensor to_pil_image"),
    "albumentations.core.transforms_interface": [("BasicTransform.__call__", _BY_CLASS)],
    "kornia.augmentation.base": [("_BasicAugmentationBase.forward", _BY_CLASS)],
    **_same("simplejpeg._jpeg simplejpeg", ("decode_jpeg", "decode:simplejpeg.decode_jpeg")),
    "turbojpeg": [("TurboJPEG.decode", "decode:turbojpeg.decode")],
    **_same("imageio imageio.v2 imageio.v3", ("imread", "decode:imageio.imread")),
    **_same("skimage.io._io skimage.io", ("imread", "decode:skimage.io.imread")),
    **_same("tifffile.tifffile tifffile", ("imread", "decode:tifffile.imread")),
    "skimage.transform": _all("transform", "skimage", "resize rescale rotate warp"),
    "scipy.ndimage": _all(
        "transform", "scipy.ndimage", "zoom rotate affine_transform gaussian_filter map_coordinates"),
    "numpy": _all("read", "numpy", "load fromfile loadtxt"),
    # Arrays of an archive are unpacked when they are asked for.
    **_same("numpy.lib.npyio numpy.lib._npyio_impl", ("NpzFile.__getitem__", "decode:numpy.npz")),
    "zlib": [("decompress", "decode:zlib")],
    **{
        name: [(f"{kind}File.read", f"decode:{name}"), ("decompress", f"decode:{name}")]
        for name, kind in (("gzip", "Gzip"), ("lzma", "LZMA"), ("bz2", "BZ2"))
    },
    "h5py._hl.dataset": [("Dataset.__getitem__", timed(choose=name_chunked_read))],
    **_same("zarr.core zarr.core.array", ("Array.__getitem__", "read:zarr")),
    **_same("pyarrow.parquet.core pyarrow.parquet", ("read_table", "read:pyarrow.parquet.read_table@")),
    **_same("pandas.io.parsers.readers pandas.io.parsers", ("read_csv", "read:pandas.read_csv")),
    "pandas.io.parquet": [("read_parquet", "read:pandas.read_parquet@")],
    "pandas": [("read_csv", "read:pandas.read_csv"), ("read_parquet", "read:pandas.read_parquet@")],
    "torch.serialization": [("load", "read:torch.load")],
    "safetensors.torch": [("load_file", "read:safetensors.load_file@")],
    "pickle": [("load", "read:pickle.load")],
    "json": [("load", "read:json.load")],
    "zipfile": [("ZipFile.read", "read:zipfile")],
    "tarfile": [
        ("TarFile.next", "read:tarfile"),
        ("_FileInFile.read", "read:tarfile"),
        ("_FileInFile.readinto", "read:tarfile"),
    ],
    # soundfile.read opens a SoundFile and reads it: one part.
    "soundfile": [
        ("read", "decode:soundfile.read@"),
        *_all("decode", "soundfile.SoundFile", "read buffer_read buffer_read_into", "SoundFile."),
    ],
    "torchaudio": [("load", "decode:torchaudio.load@")],
    **_same("librosa.core.audio librosa", ("load", "decode:librosa.load")),
    "nibabel.loadsave": [("load", "read:nibabel.load")],
    "nibabel.dataobj_images": [("DataobjImage.get_fdata", "decode:nibabel.get_fdata")],
    "pydicom.filereader": [("dcmread", "read:pydicom.dcmread")],
    "decord.video_reader": [("VideoReader.get_batch", "decode:decord.get_batch")],
    # The first look at a file scans it; where that is slow, it is the reading.
    "torchcodec.decoders._video_decoder": [
        ("VideoDecoder.__init__", "read:torchcodec.VideoDecoder"),
        *_all("decode", "torchcodec",
            "__getitem__ get_frame_at get_frames_at get_frames_in_range get_frame_played_at"
            " get_frames_played_at get_frames_played_in_range get_all_frames", "VideoDecoder."),
    ],
    "torchcodec.decoders._audio_decoder": [
        ("AudioDecoder.__init__", "read:torchcodec.AudioDecoder"),
        *_all("decode", "torchcodec", "get_all_samples get_samples_played_in_range", "AudioDecoder."),
    ],
    "av.container.core": [("open", "read:av.open@")],
    # Compiled classes of older builds cannot be changed: their decoding counts as the dataset's own code.
    "av.container.input": [
        ("InputContainer.decode", timed_generator("decode:av.decode")),
        ("InputContainer.demux", timed_generator("read:av.demux")),
        ("InputContainer.seek", "read:av.seek"),
    ],
    "av.packet": [("Packet.decode", "decode:av.decode")],
    "datasets.formatting.formatting": [
        ("query_table", "read:datasets.query_table"),
        *(
            (f"{kind}ArrowExtractor.extract_{what}", "read:datasets.extract")
            for kind in ("Python", "Numpy")
            for what in ("row", "column", "batch")
        ),
    ],
    "datasets.formatting.torch_formatter": [
        (f"TorchFormatter.format_{what}", "transform:datasets.to_torch")
        for what in ("row", "column", "batch")
    ],
    "datasets.features.image": [("Image.decode_example", "decode:datasets.Image+")],
    "datasets.features.audio": [("Audio.decode_example", "decode:datasets.Audio+")],
    "datasets.features.video": [("Video.decode_example", "decode:datasets.Video+")],
    "litdata.streaming.reader": [("BinaryReader.read", "read:litdata")],
    "litdata.streaming.item_loader": [
        (f"PyTreeLoader.{name}", "decode:litdata.deserialize+")
        for name in ("deserialize", "mds_deserialize", "_batch_deserialize_payload")
    ],
    "streaming.base.dataset": [("StreamingDataset.prepare_shard", "read:streaming.prepare_shard")],
    **{
        f"streaming.base.format.{folder}.reader": [
            (f"{kind}Reader.get_sample_data", "read:streaming.get_sample_data"),
            (f"{kind}Reader.decode_sample", "decode:streaming.decode_sample+"),
        ]
        for folder, kind in (("mds", "MDS"), ("json", "JSON"), ("xsv", "XSV"))
    },
    "webdataset.autodecode": [("Decoder.decode", "decode:webdataset+")],
    "requests.sessions": [("Session.request", "read:requests")],
    "boto3.s3.inject": [("download_fileobj", "read:boto3")],
    # One call of the kernel reads and decodes: what it computes is decoding, what it waits for is storage.
    "feedrate.loader.dataset": [
        ("_Opened._find", "read:feedrate.index"),
        ("_Opened._decode", "decode:feedrate"),
    ],
    "feedrate.loader.cached": [("KeptSamples.find_samples", "read:feedrate.cached")],
}  # fmt: skip
PATCHES = {name: functools.partial(patch_parts, entries) for name, entries in PARTS.items()}
