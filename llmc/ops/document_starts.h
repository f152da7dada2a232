/*
Where documents begin in rows that hold several, one behind the other:

  starts[b,t] = the largest s <= t with s = 0 or tokens[b,s] = first_token

  tokens (B, T) int32     starts (B, T) int32: what attention takes (AttentionShape::starts)
first_token stands in front of every document: beginning-of-sequence, or GPT-2's end-of-text, which llm.c's shards have
there. What a row begins with may be the rest of a document; it is one of its own here. Exact; 8 bytes a token.
*/
#pragma once
#include <cstdint>

template <class Device>
struct DocumentStartsOps {
    void (*document_starts)(Device&, int32_t* starts, const int32_t* tokens, int32_t first_token, int64_t B, int64_t T);
};
