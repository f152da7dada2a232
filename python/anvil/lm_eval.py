"""lm-eval (lm-evaluation-harness) on Anvil's engine: any of its tasks, on a run, a checkpoint or an export.

    python -m anvil.lm_eval --model anvil --model_args path=run/d4 --tasks hellaswag        pip install '.[lm-eval]'

Flags are those of `lm_eval`. Model arguments: path, batch_size, max_length, max_gen_toks, prefix_token_id, add_bos_token (begins
every text with the prefix token), program (as in anvil.run), and flags of `./train_gpt answer`: dtype, device, threads.
"""

import json
import pathlib
import sys
import tempfile

from .checkpoint import Checkpoint
from .errors import AnvilError
from .run import run_command

try:
    import transformers
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
except ImportError as error:
    raise AnvilError(f"{error.name} is not installed: pip install lm-eval transformers") from None


@register_model("anvil")
class AnvilLM(TemplateLM):
    def __init__(
        self, path, program=None, batch_size="auto", max_length=None, max_gen_toks=256, prefix_token_id=None, add_bos_token=False,
        device=None, max_batch_size=None, **flags,
    ):  # fmt: skip
        super().__init__()
        checkpoint = Checkpoint(path)
        if checkpoint.tokenizer is None:
            raise AnvilError(f"{path}: no tokenizer.json in it; ./train_gpt export writes one where the run has one")
        self.path, self.program, self.max_gen_toks, self.add_bos_token = checkpoint.path, program, int(max_gen_toks), add_bos_token
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(checkpoint.path)
        lengths = [checkpoint.config[name] for name in ("n_positions", "max_position_embeddings") if name in checkpoint.config]
        self.max_length = int(max_length or lengths[0])
        begin = self.tokenizer.bos_token_id if self.tokenizer.bos_token_id is not None else self.tokenizer.eos_token_id
        self._prefix = begin if prefix_token_id is None else int(prefix_token_id)
        self.flags = dict(flags, seq_len=self.max_length, batch_size=None if batch_size == "auto" else batch_size)
        if device is not None:
            self.flags["device"] = str(device).split(":")[0]  # cuda:0

    @property
    def eot_token_id(self):
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self):
        if self._prefix is None:
            raise AnvilError(f"{self.path}: its tokenizer has no token that begins a text; give prefix_token_id=")
        return self._prefix

    @property
    def tokenizer_name(self):
        return str(self.path).replace("/", "__")

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        how = dict(add_generation_prompt=add_generation_prompt, continue_final_message=not add_generation_prompt)
        return self.tokenizer.apply_chat_template(chat_history, tokenize=False, **how)

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        has_begin = self._prefix is not None and string.startswith(self.tokenizer.decode(self._prefix))
        if add_special_tokens is None:
            add_special_tokens = not has_begin and not self.add_bos_token
            begin = [self.prefix_token_id] if self.add_bos_token and not has_begin else []
        else:
            begin = []
        return begin + self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def _answers(self, requests, **flags):
        """The engine's answer to each request (llmc/commands/answer.h)."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "requests.jsonl"
            path.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
            said = run_command("answer", self.program, init_from=self.path, requests=path, **self.flags, **flags)
        return [json.loads(line) for line in said.split("\n") if line]

    def _loglikelihood_tokens(self, requests, **kwargs):
        asked = []
        for _, context, continuation in requests:
            tokens = (context + continuation)[-(self.max_length + 1) :]
            if len(continuation) >= len(tokens):
                raise AnvilError(f"an answer of {len(continuation)} tokens, and the model reads {self.max_length}")
            asked.append({"tokens": tokens, "start": len(tokens) - len(continuation)})
        scores = []
        for (texts, _, _), answer in zip(requests, self._answers(asked)):
            logprob = float("nan") if answer["logprob"] is None else answer["logprob"]
            scores.append((logprob, answer["is_greedy"]))
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, scores[-1])
        return scores

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        windows, owners = [], []
        for i, (text,) in enumerate(request.args for request in requests):
            tokens = self.tok_encode(text, add_special_tokens=False if self.add_bos_token else None)
            rolling = utils.get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
            windows += [(None, *utils.make_disjoint_window(window)) for window in rolling]
            owners += [i] * (len(windows) - len(owners))
        sums = [0.0] * len(requests)
        for i, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows)):
            sums[i] += logprob
        for request, logprob in zip(requests, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, logprob)
        return sums

    def generate_until(self, requests, disable_tqdm=False):
        eos = None if self.eot_token_id is None else self.tokenizer.decode(self.eot_token_id)
        alike, texts = {}, [""] * len(requests)  # requests with the same flags
        for i, (context, asked) in enumerate(request.args for request in requests):
            how = normalize_gen_kwargs(asked, self.max_gen_toks)
            until, most = handle_stop_sequences(how.pop("until", None), eos), how.pop("max_gen_toks")
            sampling = {"temperature": how.pop("temperature", 0) if how.pop("do_sample", False) else 0}
            sampling.update({name: how.pop(name) for name in ("top_p", "top_k") if name in how})
            if how:
                raise AnvilError(f"generation arguments that the engine does not have: {', '.join(how)}")
            room = self.max_length - most
            if room <= 0:
                raise AnvilError(f"{most} tokens to generate, and the model reads {self.max_length}: give a smaller max_gen_toks")
            tokens = self.tok_encode(context)[-room:]
            flags = tuple(sorted({**sampling, "sample_tokens": most}.items()))
            alike.setdefault(flags, []).append((i, {"tokens": tokens, "until": until}))
        for flags, group in alike.items():
            for (i, request), answer in zip(group, self._answers([request for _, request in group], **dict(flags))):
                texts[i] = postprocess_generated_text(answer["text"], request["until"], None)
                self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
        return texts


def main():
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    try:
        main()
    except AnvilError as error:
        sys.exit(f"error: {error}")
