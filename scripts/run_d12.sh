#!/usr/bin/env bash
# The modern model, 12 layers on FineWeb: 1.482 G tokens, 1.2e+18 FLOP, 340 s and 2.264 USD on 8 H100,
# as train_gpt plan computes them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" d12 "$@"
