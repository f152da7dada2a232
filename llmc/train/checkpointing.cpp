// See checkpointing.h.
#include "llmc/train/checkpointing.h"

std::string hugging_face_config(const GptShape& s) {
    return format(
        "{\n"
        "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
        "  \"model_type\": \"gpt2\",\n"
        "  \"vocab_size\": %ld,\n"
        "  \"n_positions\": %ld,\n"
        "  \"n_embd\": %ld,\n"
        "  \"n_layer\": %ld,\n"
        "  \"n_head\": %ld,\n"
        "  \"activation_function\": \"gelu_new\",\n"
        "  \"layer_norm_epsilon\": %g,\n"
        "  \"attn_pdrop\": 0.0,\n"
        "  \"embd_pdrop\": 0.0,\n"
        "  \"resid_pdrop\": 0.0,\n"
        "  \"tie_word_embeddings\": true,\n"
        "  \"bos_token_id\": null,\n"
        "  \"eos_token_id\": null,\n"
        "  \"torch_dtype\": \"float32\"\n"
        "}\n",
        s.vocab_size, s.max_seq_len, s.channels, s.num_layers, s.num_heads, double(kLayernormEps));
}

GptShape checkpoint_shape(const std::string& folder) {
    GptShape s{};
    const std::string path = folder + "/config.json";
    const double most = 1 << 24;
    from_json({{"", "n_layer", &s.num_layers, "", {}, 1, most},
               {"", "n_head", &s.num_heads, "", {}, 1, most},
               {"", "n_embd", &s.channels, "", {}, 1, most},
               {"", "n_positions", &s.max_seq_len, "", {}, 1, most},
               {"", "vocab_size", &s.vocab_size, "", {}, 1, most}},
              read_file(path), path);
    return s;
}
