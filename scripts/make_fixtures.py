"""Makes the reference tensors in test/fixtures/ with PyTorch, for the tests of every op and of the whole model.

    pip install torch==2.13.0 numpy          (the CPU build is enough)
    python scripts/make_fixtures.py          writes those of test/fixtures/*.safetensors that are missing or differ
    python scripts/make_fixtures.py --check  makes them again and compares, without writing; exit code 1 on a difference

Inputs are float32, made from integers (splitmix64) without any library function, so that every machine and the C++ tests
(test/op_testing.h) get the same bits. PyTorch computes the references in float64 from these inputs, and they are rounded
once to float32, so that a test's tolerance covers only Anvil's error. Results in double may differ in the last bits
between machines, so --check allows references one float32 epsilon of |value| + rms; everything else must be identical.
Tensors whose names begin with `grad.` or `want.` are references; all others are inputs.
"""

import argparse
import inspect
import pathlib
import sys

import torch

import model_fixtures
import op_fixtures
import optimizer_fixtures
from fixture_file import TORCH, agrees, check, save

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "test" / "fixtures"


def fixtures_of(module):
    makers = [f for name, f in inspect.getmembers(module, inspect.isfunction)
              if f.__module__ == module.__name__ and not name.startswith("_")]  # fmt: skip
    return {f.name: f.arrays for f in (make() for make in makers)}


def make_all():
    return fixtures_of(op_fixtures) | fixtures_of(optimizer_fixtures) | model_fixtures.fixtures()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed fixtures, write nothing there")
    arguments = parser.parse_args()
    if torch.__version__.split("+")[0] != TORCH:
        sys.exit(f"error: PyTorch {torch.__version__} found, expected {TORCH}; run: pip install torch=={TORCH}")
    torch.set_num_threads(1)
    made = make_all()
    size = sum(a.nbytes for arrays in made.values() for a in arrays.values())
    summary = f"{len(made)} fixtures, {size / 1e6:.2f} MB"
    if not arguments.check:
        written = [name for name, arrays in made.items() if not agrees(FOLDER / f"{name}.safetensors", arrays)]
        for name in written:
            save(FOLDER / f"{name}.safetensors", made[name])
        print(f"{summary}; written to {FOLDER}: {', '.join(written) or 'none, the committed ones agree'}")
    elif differences := check(made, FOLDER):
        sys.exit(f"error: {differences} tensors differ; if that is meant, run this script without --check and commit")
    else:
        print(f"{summary}: the committed ones agree")


if __name__ == "__main__":
    main()
