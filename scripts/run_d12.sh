#!/usr/bin/env bash
# The modern model, 12 layers on FineWeb: 1.482 G tokens, 1.196 EFLOP, 382 s and 2.55 USD on 8 H100,
# as train_gpt plan predicts them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" d12 "$@"
