"""What the checks of this folder share: a line for each thing compared, and commands that must succeed."""

import subprocess
import sys

count = 0


def check(what, good, detail=""):
    global count
    count += not good
    print(f"{'ok     ' if good else 'FAILED '} {what} {detail}", flush=True)


def run(*arguments):
    """Its stdout."""
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}\nexit code {done.returncode}: {done.stderr}")
    return done.stdout
