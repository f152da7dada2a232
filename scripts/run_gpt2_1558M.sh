#!/usr/bin/env bash
# GPT-2 1558M on FineWeb: 33.55 G tokens, 3.29e+20 FLOP, 25.7 h and 616.4 USD on 8 H100,
# as train_gpt plan computes them. Expected validation loss: none published for these tokens.
exec "$(dirname "$0")/run.sh" gpt2-1558M "$@"
