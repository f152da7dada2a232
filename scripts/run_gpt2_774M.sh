#!/usr/bin/env bash
# GPT-2 774M on FineWeb: 150 G tokens, 737.4 EFLOP, 51.0 h and 1.22 k USD on 8 H100,
# as train_gpt plan predicts them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" gpt2-774M "$@"
