#!/usr/bin/env bash
# GPT-2 124M on FineWeb: 10.26 G tokens, 8.182 EFLOP, 37.3 min and 14.9 USD on 8 H100,
# as train_gpt plan predicts them. Expected validation loss: 3.29, llm.c's (its discussion 481).
exec "$(dirname "$0")/run.sh" gpt2-124M "$@"
