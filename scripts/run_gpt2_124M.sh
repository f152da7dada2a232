#!/usr/bin/env bash
# GPT-2 124M on FineWeb: 10.26 G tokens, 8.18e+18 FLOP, 38.5 min and 15.39 USD on 8 H100,
# as train_gpt plan computes them. Expected validation loss: 3.29, llm.c's (its discussion 481).
exec "$(dirname "$0")/run.sh" gpt2-124M "$@"
