#!/usr/bin/env bash
# GPT-2 774M on FineWeb: 150 G tokens, 7.37e+20 FLOP, 2.4 days and 1384 USD on 8 H100,
# as train_gpt plan computes them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" gpt2-774M "$@"
