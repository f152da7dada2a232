#!/usr/bin/env bash
# GPT-2 1558M on FineWeb: 33.55 G tokens, 328.9 EFLOP, 21.4 h and 513 USD on 8 H100,
# as train_gpt plan predicts them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" gpt2-1558M "$@"
