#!/usr/bin/env bash
# The modern model, 24 layers on FineWeb: 9.08 G tokens, 43.6 EFLOP, 3.1 h and 74.1 USD on 8 H100,
# as train_gpt plan predicts them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" d24 "$@"
