# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedrate.cli import main
from support.images import read_tree, save_image


def shown(text: str, tmp_path: Path) -> str:
    """Return output with what differs from run to run put away: the folder, times, rates."""
    text = text.replace(str(tmp_path), "TMP")
    text = re.sub(r"[\d.,]+ (µs|ms|s)\b", "TIME", text)
    return re.sub(r"[\d.,]+ [KMG]?B/s", "RATE", text)


def test_pack_says_what_it_did_and_what_to_type_next(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (jpeg_folder / "cat" / "bad.jpg").write_text("")
    code = main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1"])
    out, err = capsys.readouterr()
    assert code == 0
    lines = shown(out, tmp_path).splitlines()
    assert lines[0] == "packed 16 samples (2 classes) into TMP/p"
    assert lines[1] == "  fields   image, label (number)"
    assert re.fullmatch(r"  size     [\d.]+ KB in 1 shard, from [\d.]+ KB of files", lines[2])
    assert lines[3] == "  time     TIME, RATE"
    assert lines[4].startswith("  decoder  14 images by the kernel, 2 through Pillow, which is slower (")
    assert lines[5:] == [
        "  ignored  1 .txt file",
        "  quality        1  empty: rejected",
        "                 1  progressive JPEG: kept",
        "                 1  no colour: kept",
        "",
        "rejected: 1",
        "        1  the file is empty: cat/bad.jpg",
        "  all of them: rejected.jsonl in the pack",
        "",
        "next: feedrate verify TMP/p",
    ]
    talk = shown(err, tmp_path).splitlines()
    assert talk[0] == "packing TMP/photos into TMP/p"
    assert re.fullmatch(r"packing 17 samples \([\d.]+ KB\)", talk[1])
    assert talk[2:] == ["packing: done in TIME"]


def test_json_to_standard_output_is_all_that_stands_there(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1", "--json", "-"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (document["command"], document["schema_version"], document["samples"]) == ("pack", 1, 16)


def test_json_goes_to_a_file_beside_the_text(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        ["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1", "--json", str(tmp_path / "r.json")]
    )
    assert capsys.readouterr().out.startswith("packed 16 samples")
    assert json.loads((tmp_path / "r.json").read_text())["shards"] == 1


def test_json_file_that_exists_is_refused_before_the_work(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text("mine")
    code = main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--json", str(tmp_path / "r.json")])
    assert code == 1
    assert "is already there" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_options_reach_the_pack(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("which,what,note\ncat/0.jpg,a,hello\ndog/1.JPEG,b,you\n")
    code = main(
        ["pack", str(jpeg_folder), str(tmp_path / "p"), "--labels", str(table), "--path-column", "which",
         "--label-column", "what", "--field", "caption:text=note", "--seed", "5", "--shard-size", "1KB",
         "--workers", "1"]
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err
    settings = json.loads((tmp_path / "p" / "pack.json").read_text())["settings"]
    assert (settings["seed"], settings["shard_bytes"], settings["fields"]) == (5, 1000, ["caption:text=note"])
    assert len(list((tmp_path / "p").glob("*.tar"))) == 2
    assert "left out  14 images that the table does not name" in capsys.readouterr().out


def test_known_failure_is_a_sentence_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["pack", str(tmp_path / "nowhere"), str(tmp_path / "p")])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert shown(err, tmp_path) == (
        "packing TMP/nowhere into TMP/p\nerror: no dataset at TMP/nowhere (No such file or directory)\n"
    )
    assert read_tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--shard-size", "many"], "'many' is not a size; write it like 256MB"),
        (["--workers", "0"], "must be at least 1, got 0"),
        (["--seed", "-1"], "must be at least 0, got -1"),
        (["--seed", "x"], "'x' is not a whole number"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    option: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["pack", "a", "b", *option])
    assert words in capsys.readouterr().err


def test_a_lossy_pack_says_what_changed_and_what_it_cost(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1", "--resize", "32"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[3] == (
        "  pixels   lossy: shorter side 32, quality 90; 'feedrate unpack' cannot give the original files back"
    )
    assert re.fullmatch(
        r"           16 images stored anew \(16 of them resized\), [\d.]+ KB became [\d.]+ KB", lines[4]
    )
    assert re.fullmatch(
        r"           encoding left \d\d\.\d dB PSNR \(mean of 1 image, after the resize\)", lines[5]
    )
    main(["verify", str(tmp_path / "p"), "--workers", "1"])
    assert "\npixels are lossy: shorter side 32, quality 90\n" in capsys.readouterr().out
    main(["ls", str(tmp_path / "p")])
    out = capsys.readouterr().out
    assert ", encoded anew where asked for, " in out
    assert "\n  pixels   lossy: shorter side 32, quality 90\n" in out
    main(["unpack", str(tmp_path / "p"), str(tmp_path / "u"), "--workers", "1"])
    assert capsys.readouterr().out.endswith(
        "these are not all the original files; packing changed images (lossy: shorter side 32, quality 90)\n"
    )


def test_a_raw_pack_says_so(jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1", "--raw", "--max-side", "40"]
    )
    assert code == 0
    assert "  pixels   raw, lossy: longer side 40; " in capsys.readouterr().out
    main(["ls", str(tmp_path / "p")])
    out = capsys.readouterr().out
    assert ", raw rows, " in out
    assert "100.0% read by the kernel" in out


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--resize", "0"], "must be at least 1, got 0"),
        (["--max-side", "x"], "'x' is not a whole number"),
        (["--quality", "101"], "must be at most 100, got 101"),
        (["--quality", "0"], "must be at least 1, got 0"),
        (["--raw", "--quality", "90"], "not allowed with argument --raw"),
        (["--resize", "9", "--max-side", "9"], "not allowed with argument --resize"),
    ],
)
def test_choices_that_make_no_sense_are_wrong_usage(
    option: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["pack", "a", "b", *option])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("os._exit(3)", "ended the process that packs, with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended the process that packs, by SIGSEGV"),
        ("sys.exit(3)", "killer:end failed: SystemExit: 3"),
    ],
)
def test_a_map_that_ends_its_process_is_named(tmp_path: Path, line: str, how: str) -> None:
    save_image(tmp_path / "s" / "cat" / "0.jpg", 0)
    text = f"import os, signal, sys\n\ndef end(sample):\n    {line}\n"
    (tmp_path / "killer.py").write_text(text)
    command = [sys.executable, "-m", "feedrate", "pack", "s", "p", "--map", "killer:end"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert how in ended.stderr
    assert "hint: try it on one sample in Python first" in ended.stderr


def test_a_pack_with_a_map_ends_when_it_is_told_to(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "cat" / "0.jpg", 0)
    os.mkfifo(tmp_path / "reached")
    text = "import time\n\ndef wait(sample):\n    open('reached', 'w').close()\n    time.sleep(600)\n"
    (tmp_path / "waiting.py").write_text(text)
    command = [sys.executable, "-m", "feedrate", "pack", "s", "p", "--map", "waiting:wait"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)):
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
            (tmp_path / "reached").open().close()  # until the map is called
            process.send_signal(number)
            assert process.wait() == code


def write_table(tmp_path: Path, missing: int) -> tuple[str, str]:
    names = [f"{n}.jpg" for n in range(3 + missing)]
    for number, name in enumerate(names[:3]):
        save_image(tmp_path / "s" / name, number)
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n" + "".join(f"{name},{n % 2}\n" for n, name in enumerate(names)))
    return str(tmp_path / "s"), str(table)


def test_rows_whose_files_do_not_exist_are_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, table = write_table(tmp_path, missing=2)
    assert main(["pack", source, str(tmp_path / "p"), "--labels", table, "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "        2  rows name files that do not exist: all rejected" in out
    assert "disk" not in out
    assert "WARNING" not in out


def test_a_dataset_of_which_most_was_left_out_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, table = write_table(tmp_path, missing=4)
    assert main(["pack", source, str(tmp_path / "p"), "--labels", table, "--workers", "1"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "WARNING: most of the dataset was left out: 4 of 7 samples, see below"


def test_strict_packing_fails_when_a_sample_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, table = write_table(tmp_path, missing=1)
    pack = str(tmp_path / "p")
    assert main(["pack", source, pack, "--labels", table, "--workers", "1", "--strict"]) == 1
    err = capsys.readouterr().err
    assert "error: 1 sample left out, and --strict allows none" in err
    assert f"hint: see {pack}/rejected.jsonl" in err
    assert main(["verify", pack]) == 0


def test_strict_packing_of_a_whole_dataset_succeeds(tmp_path: Path) -> None:
    source, table = write_table(tmp_path, missing=0)
    assert main(["pack", source, str(tmp_path / "p"), "--labels", table, "--workers", "1", "--strict"]) == 0


def test_too_little_memory_is_a_sentence_and_rejects_no_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image(tmp_path / "s" / "a.jpg", 1, progressive=True)

    def fail(_image: object) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    code = main(["pack", str(tmp_path / "s"), str(tmp_path / "p"), "--workers", "1"])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert "error: out of memory" in err
    assert not (tmp_path / "p" / "pack.json").exists()
