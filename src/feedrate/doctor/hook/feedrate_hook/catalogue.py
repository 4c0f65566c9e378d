# SPDX-License-Identifier: Apache-2.0
"""Which functions are timed as readers, decoders and transforms of a fetch, by the module that defines them.

A name that ends in "@" takes the file's path as its first argument and opens it where Python does not see it.
"""

from __future__ import annotations

from typing import Any

from .parts import timed_by_class, timed_load, timed_resize, timed_steps


def _all(kind: str, library: str, names: str, owner: str = "") -> list[tuple[str, Any]]:
    return [(f"{owner}{name}", f"{kind}:{library}.{name}") for name in names.split()]


PARTS: dict[str, list[tuple[str, Any]]] = {
    "PIL.Image": [
        ("open", "read:PIL.Image.open"),
        ("Image.resize", timed_resize),
        *_all(
            "transform",
            "PIL",
            "convert crop transpose rotate filter transform reduce thumbnail point quantize paste tobytes",
            "Image.",
        ),
    ],
    "PIL.ImageFile": [("ImageFile.load", timed_load)],
    # These decode in a load() of their own.
    "PIL.WebPImagePlugin": [("WebPImageFile.load", timed_load)],
    "PIL.AvifImagePlugin": [("AvifImageFile.load", timed_load)],
    "PIL.TiffImagePlugin": [("TiffImageFile.load", timed_load)],
    "PIL.ImageOps": _all(
        "transform",
        "PIL",
        "autocontrast equalize posterize solarize invert mirror flip fit pad expand scale contain grayscale"
        " exif_transpose",
    ),
    "PIL.ImageEnhance": [("_Enhance.enhance", "transform:PIL.enhance")],
    "cv2": [
        ("imread", "decode:cv2.imread@"),
        ("imdecode", "decode:cv2.imdecode"),
        *_all(
            "transform",
            "cv2",
            "resize cvtColor GaussianBlur medianBlur bilateralFilter blur boxFilter filter2D warpAffine"
            " warpPerspective remap flip rotate copyMakeBorder LUT equalizeHist addWeighted normalize"
            " threshold adaptiveThreshold morphologyEx erode dilate fastNlMeansDenoisingColored Canny Sobel",
        ),
    ],
    "torchvision.io.image": [
        ("read_file", "read:torchvision.io.read_file@"),
        ("read_image", "decode:torchvision.io.read_image@"),
        *_all(
            "decode",
            "torchvision.io",
            "decode_image decode_jpeg decode_png decode_gif decode_webp decode_avif",
        ),
    ],
    "torchvision.io.video": [("read_video", "decode:torchvision.io.read_video@")],
    "torchvision.transforms.transforms": [("Compose.__call__", timed_steps)],
    "torchvision.transforms.v2._container": [("Compose.forward", timed_steps)],
    # Not scriptable, so nobody hands them to TorchScript; used outside Compose by segmentation code.
    "torchvision.transforms.functional": _all(
        "transform", "torchvision", "to_tensor pil_to_tensor to_pil_image"
    ),
    "albumentations.core.transforms_interface": [("BasicTransform.__call__", timed_by_class)],
    "kornia.augmentation.base": [("_BasicAugmentationBase.forward", timed_by_class)],
    "simplejpeg._jpeg": [("decode_jpeg", "decode:simplejpeg.decode_jpeg")],
    "simplejpeg": [("decode_jpeg", "decode:simplejpeg.decode_jpeg")],
    "turbojpeg": [("TurboJPEG.decode", "decode:turbojpeg.decode")],
    "imageio": [("imread", "decode:imageio.imread")],
    "imageio.v2": [("imread", "decode:imageio.imread")],
    "imageio.v3": [("imread", "decode:imageio.imread")],
    "skimage.io._io": [("imread", "decode:skimage.io.imread")],
    "skimage.io": [("imread", "decode:skimage.io.imread")],
    "tifffile.tifffile": [("imread", "decode:tifffile.imread")],
    "tifffile": [("imread", "decode:tifffile.imread")],
    "skimage.transform": _all("transform", "skimage", "resize rescale rotate warp"),
    "scipy.ndimage": _all(
        "transform", "scipy.ndimage", "zoom rotate affine_transform gaussian_filter map_coordinates"
    ),
    "numpy": [
        ("load", "read:numpy.load"),
        ("fromfile", "read:numpy.fromfile"),
        ("loadtxt", "read:numpy.loadtxt"),
    ],
    # Arrays of an archive are unpacked when they are asked for.
    "numpy.lib.npyio": [("NpzFile.__getitem__", "decode:numpy.npz")],
    "numpy.lib._npyio_impl": [("NpzFile.__getitem__", "decode:numpy.npz")],
    "zlib": [("decompress", "decode:zlib")],
    "gzip": [("GzipFile.read", "decode:gzip"), ("decompress", "decode:gzip")],
    "lzma": [("LZMAFile.read", "decode:lzma"), ("decompress", "decode:lzma")],
    "bz2": [("BZ2File.read", "decode:bz2"), ("decompress", "decode:bz2")],
    "h5py._hl.dataset": [("Dataset.__getitem__", "read:h5py")],
    "zarr.core": [("Array.__getitem__", "read:zarr")],
    "zarr.core.array": [("Array.__getitem__", "read:zarr")],
    "pyarrow.parquet.core": [("read_table", "read:pyarrow.parquet.read_table@")],
    "pyarrow.parquet": [("read_table", "read:pyarrow.parquet.read_table@")],
    "pandas.io.parsers.readers": [("read_csv", "read:pandas.read_csv")],
    "pandas.io.parsers": [("read_csv", "read:pandas.read_csv")],
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
    "soundfile": [("read", "decode:soundfile.read@")],
    "torchaudio": [("load", "decode:torchaudio.load@")],
    "librosa.core.audio": [("load", "decode:librosa.load")],
    "librosa": [("load", "decode:librosa.load")],
    "nibabel.loadsave": [("load", "read:nibabel.load")],
    "nibabel.dataobj_images": [("DataobjImage.get_fdata", "decode:nibabel.get_fdata")],
    "pydicom.filereader": [("dcmread", "read:pydicom.dcmread")],
    "decord.video_reader": [("VideoReader.get_batch", "decode:decord.get_batch")],
    "requests.sessions": [("Session.request", "read:requests")],
    "boto3.s3.inject": [("download_fileobj", "read:boto3")],
    # One call of the kernel reads and decodes: what it computes is decoding, what it waits for is storage.
    "feedrate.load.dataset": [
        ("_Opened._find", "read:feedrate.index"),
        ("_Opened._decode", "decode:feedrate"),
    ],
    "feedrate.load.kept_samples": [("KeptSamples.find", "read:feedrate.cached")],
}
