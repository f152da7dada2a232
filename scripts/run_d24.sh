#!/usr/bin/env bash
# The modern model, 24 layers on FineWeb: 9.08 G tokens, 4.36e+19 FLOP, 3.4 h and 82.23 USD on 8 H100,
# as train_gpt plan computes them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" d24 "$@"
