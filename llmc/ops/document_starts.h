/*
Finds where documents begin in packed rows, which hold several one after another:

  starts[b,t] = the largest s <= t with s = 0 or tokens[b,s] = first_token

  tokens (B, T) int32     starts (B, T) int32, as attention takes them (AttentionShape::starts)
first_token precedes every document: beginning-of-sequence, or GPT-2's end-of-text in llm.c's shards. A row may begin
with the rest of a document, which counts as a document of its own. Exact; 8 bytes per token.
*/
#pragma once
#include <cstdint>

template <class Device>
struct DocumentStartsOps {
    void (*document_starts)(Device&, int32_t* starts, const int32_t* tokens, int32_t first_token, int64_t B, int64_t T);
};
