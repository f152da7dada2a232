#!/usr/bin/env bash
# The modern model, 20 layers on FineWeb: 5.49 G tokens, 16.07 EFLOP, 71.1 min and 28.4 USD on 8 H100,
# as train_gpt plan predicts them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" d20 "$@"
