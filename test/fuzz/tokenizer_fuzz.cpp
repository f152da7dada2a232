// Files of tokenizers of every kind: what is let in encodes any text, and decodes to the same bytes.
#include <algorithm>
#include "llmc/data/bpe.h"
#include "llmc/data/tokenizer_formats.h"
#include "test/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return fuzz([&] {
        const std::string_view text(reinterpret_cast<const char*>(data), size);
        const char* sidecar = R"({"pattern": "nanochat", "special_tokens": {"<|bos|>": 300}})";
        const Tokenizer tokenizer = read_tokenizer(text, sidecar, "the file");
        const std::vector<int32_t> token_bytes = tokenizer.token_bytes();
        ensure(token_bytes.size() == tokenizer.symbols.size() && tokenizer.separator() < tokenizer.vocab_size());
        if (tokenizer.kind == TokenizerKind::chars || (tokenizer.bpe && !tokenizer.bpe->encodes)) return;
        // Normalizers and added tokens that take white space along change the text.
        const auto strips = [](const AddedToken& token) { return token.lstrip || token.rstrip; };
        const Bpe* bpe = tokenizer.bpe.get();
        const bool is_exact = !bpe || (!bpe->of_characters && !bpe->normalizes &&
                                       std::none_of(bpe->added.begin(), bpe->added.end(), strips));
        // Short pieces and long ones, and the file's own bytes, many of which are not UTF-8.
        for (const std::string& input :
             {std::string("the other's 123 \r\n "), std::string(200, 'a'), std::string(text)}) {
            const std::string back = tokenizer.decode(tokenizer.encode(input));
            ensure(!is_exact || back == input);
        }
        if (tokenizer.bpe) read_tokenizer(tokenizer_json(tokenizer), "", "what was written");
    });
}
