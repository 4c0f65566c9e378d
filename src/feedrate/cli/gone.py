# SPDX-License-Identifier: Apache-2.0
"""Commands and options that earlier versions had, each with what to type today.

An entry stays for one version; then the word is as unknown as any other.
"""

from __future__ import annotations

# The words after `feedrate` -> what does their work now.
COMMANDS: dict[str, str] = {
    "fidelity": "compare samples of a pack with Pillow's pixels: feedrate verify PACK --pixels 200",
    "merge": "add one pack to another: feedrate append OTHER_PACK PACK",
    "bench kernel": "decoder against decoder is a script of the repository: python benchmarks/decoders.py",
    "quality": "read what packing found out: feedrate ls PACK --quality, with pictures --html PAGE",
    "warm": "load a pack into memory: feedrate stage PACK --warm",
}

# The words after `feedrate`, and an option -> what to type instead.
OPTIONS: dict[tuple[str, str], str] = {
    ("index", "--to"): "name the folder in the second word: feedrate index PATH TARGET",
    ("pack", "--html"): "look at the pack: feedrate ls PACK --html PAGE",
    ("stage", "--to"): "name the folder as elsewhere: feedrate stage SOURCE --scratch DIR",
    ("stage", "--nodes"): "start it on each node of the job: srun --ntasks-per-node=1 feedrate stage SOURCE",
    ("bench machine", "--compare"): "lay its files side by side: feedrate bench machine --json PATH",
    ("bench machine", "--markdown"): "share what --json writes: feedrate bench machine --json PATH",
    ("speedtest", "--seconds"): "leave it out, or see fewer steps: feedrate speedtest --quick",
    ("watch", "--"): "start it by itself, and watch it: python train.py & feedrate watch $!",
    ("plan", "--machines"): "plan for each kind of node: feedrate plan DATASET --what-if cores=64 gpu=4xA100",
}
