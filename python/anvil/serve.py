"""`transformers serve` for models without a class in transformers: an OpenAI-compatible server for any export.

    python -m anvil.serve FOLDER --port 8000            all flags are those of `transformers serve`; pip install 'transformers[serving]'

transformers serve (5.23) finds only its own classes, even with trust_remote_code. Here it also finds that of modeling_anvil.py.
"""

import sys

from .errors import AnvilError


def main():
    try:
        import transformers
        from transformers.cli.transformers import main as command_line
    except ImportError:
        raise AnvilError("transformers is not installed, or too old to serve: pip install 'transformers[serving]'") from None
    from .modeling_anvil import AnvilConfig, AnvilForCausalLM

    transformers.AutoConfig.register(AnvilConfig.model_type, AnvilConfig)
    transformers.AutoModelForCausalLM.register(AnvilConfig, AnvilForCausalLM)
    transformers.AnvilForCausalLM = AnvilForCausalLM
    sys.argv[:1] = ["transformers", "serve"]
    command_line()


if __name__ == "__main__":
    try:
        main()
    except AnvilError as error:
        sys.exit(f"error: {error}")
