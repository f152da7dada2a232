#!/usr/bin/env bash
# The modern model, 20 layers on FineWeb: 5.49 G tokens, 1.61e+19 FLOP, 75.7 min and 30.29 USD on 8 H100,
# as train_gpt plan computes them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" d20 "$@"
