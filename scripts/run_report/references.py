"""What others reached: levels and curves drawn beside a run's, and compared with it."""

from dataclasses import dataclass

from .records import UserError

# of each kind: its flag, what its values are called there, the unit in a sentence
KINDS = {
    "loss": ("--reference", "LOSS", " nats per token"),
    "bpb": ("--reference-bpb", "BPB", " bits per byte"),
    "score": ("--reference-score", "SCORE", ""),
}

# What others published of the targets of scripts/speedrun.sh: (kind, as its flag takes it). dev/lint/check_docs.py holds
# scripts/run.sh and doc/speedrun.md to these figures.
PUBLISHED = {
    # modded-nanogpt, track 3: the baseline's log
    "stage-a": [("loss", "modded-nanogpt, track 3=125:4.586,250:4.098,500:3.828,1000:3.652,2000:3.454,3000:3.304,3250:3.277")],
    # llm.c's discussion 481
    "gpt2-124M": [("loss", "llm.c after 10 G tokens=3.29")],
    # nanochat's README at commit 92d63d4: the mean of 5 runs on 8 H100, of 99 minutes each; and GPT-2's score.
    "gpt2-grade": [
        ("bpb", "nanochat=0.718"),
        ("score", "core: nanochat=0.2626"),
        ("score", "core: GPT-2 1558M=0.256525"),
    ],
}


@dataclass
class Reference:
    kind: str
    label: str
    level: float | None  # at every step, or
    points: list  # [(step, value)]
    file: str = ""  # of a score: that of its questions, without folder and ending

    @classmethod
    def parse(cls, kind, text):
        """'LABEL=VALUE' or 'LABEL=STEP:VALUE,...'; of a score 'FILE: LABEL=...'."""
        flag, value, _ = KINDS[kind]
        label, _, values = text.rpartition("=")
        file, colon, rest = label.partition(":")
        try:
            if not label or (kind == "score" and not (colon and rest.strip())):
                raise ValueError
            label, file = (rest.strip(), file.strip()) if kind == "score" else (label, "")
            if ":" not in values:
                return cls(kind, label, float(values), [], file)
            pairs = [point.split(":") for point in values.split(",")]
            return cls(kind, label, None, sorted((int(step), float(loss)) for step, loss in pairs), file)
        except ValueError:
            before = "FILE: " if kind == "score" else ""
            raise UserError(
                f"{flag} '{text}': expected {before}LABEL={value} or {before}LABEL=STEP:{value},STEP:{value},..."
            ) from None

    def compared_with(self, run):
        """A row of a table: the last step at which there is a value of both, and the difference. run: [(step, value)]"""
        theirs = dict(self.points)
        common = [(step, value) for step, value in run if self.level is not None or step in theirs]
        if not common:
            what = "score" if self.kind == "score" else "validation"
            return self.label, f"no {what} at any of its steps yet"
        step, value = common[-1]
        other = self.level if self.level is not None else theirs[step]
        what = f" on {self.file}" if self.file else KINDS[self.kind][2]
        return self.label, f"{other:.4f}{what}; this run {value - other:+.4f} at step {step}"

    def drawn(self, last):
        """Its curve from 0 to `last`."""
        return [(0, self.level), (last, self.level)] if self.level is not None else [p for p in self.points if p[0] <= last]
