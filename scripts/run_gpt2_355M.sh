#!/usr/bin/env bash
# GPT-2 355M on FineWeb: 31.46 G tokens, 71.46 EFLOP, 5.0 h and 119 USD on 8 H100,
# as train_gpt plan predicts them. Expected validation loss: 2.92, llm.c's (modded-nanogpt, track 2).
exec "$(dirname "$0")/run.sh" gpt2-355M "$@"
