// Import and export of other programs' models: the logits of transformers for every variant of files, weights that
// every format preserves exactly, and invalid files that are refused by name.
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include "llmc/checkpoint/run_state.h"  // load_weights
#include "llmc/cpu/kernels.h"
#include "llmc/interop/export.h"
#include "llmc/interop/llmc_model.h"
#include "llmc/interop/tensor_files.h"  // half_to_float
#include "llmc/interop/tokenizer_export.h"
#include "test/model/model_testing.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::vector<std::string> kModels = {"gpt2",    "gpt2_bare",      "llama", "llama_tied", "mistral", "nanochat",
                                          "llama31", "mistral_window", "qwen2", "qwen3",      "smollm3", "yarn"};
std::string fixture_folder(const std::string& name) { return "test/fixtures/interop/" + name; }

void put_file(const std::string& path, const std::string& content) {
    FileWriter(path).write(content.data(), content.size());
}

// Not inlined: g++ 12 fails on SIMD code inside Catch2's test cases.
[[gnu::noinline]] Floats logits_of(const StoredModel& stored, const Fixture& fixture) {
    Cpu cpu;
    const std::vector<int32_t> tokens = fixture.ints("tokens");
    const int64_t B = fixture.shape("tokens")[0], T = fixture.shape("tokens")[1], V = stored.shape().vocab_size;
    Gpt<Cpu, float> model(cpu, stored.shape(), B, T);
    Floats values, logits;
    for (const Parameter& p : model.parameters) {
        values.assign(size_t(p.size()), std::numeric_limits<float>::quiet_NaN());
        stored.read(p, values.data());
        model.set_weight(p, values.data());
    }
    model.forward(tokens.data(), B, T);
    const float* rows = model.logits(0, B * T);
    const int64_t Vp = stored.shape().padded_vocab_size();
    for (int64_t n = 0; n < B * T; n++) logits.insert(logits.end(), rows + n * Vp, rows + n * Vp + V);
    const Softcap softcap = stored.shape().architecture.softcap;  // which is a part of the loss here
    for (float& z : logits) z = capped(z, softcap);
    return logits;
}

// Every weight, one after the other, the padding included.
Floats weights_of(const StoredModel& stored) {
    Floats all, values;
    const ParameterList list(stored.shape());
    for (const Parameter& p : list) {
        values.assign(size_t(p.size()), std::numeric_limits<float>::quiet_NaN());
        stored.read(p, values.data());
        all.insert(all.end(), values.begin(), values.end());
    }
    return all;
}

// A copy of a fixture's folder whose config.json or header of weights is changed.
struct Copy {
    ScratchFolder scratch;
    std::string path = scratch / "model";

    explicit Copy(const std::string& name) { fs::copy(fixture_folder(name), path, fs::copy_options::recursive); }
    void change_config(const std::function<void(json&)>& change) const {
        json config = json::parse(read_file(path + "/config.json"));
        change(config);
        put_file(path + "/config.json", config.dump());
    }
    // The header may change in length, the data stay.
    void change_header(const std::function<void(json&)>& change, const std::string& file = "model.safetensors") const {
        std::string content = read_file(path + "/" + file);
        uint64_t bytes;
        std::memcpy(&bytes, content.data(), 8);
        json header = json::parse(content.substr(8, bytes));
        change(header);
        const std::string text = header.dump(), data = content.substr(8 + bytes);
        bytes = text.size();
        put_file(path + "/" + file, std::string(reinterpret_cast<const char*>(&bytes), 8) + text + data);
    }
    std::string error() const {
        return error_of([&] { StoredModel{path}; });
    }
};

}  // namespace

TEST_CASE("models of transformers compute the logits that they compute there", "[interop]") {
    const Fixture fixture("interop/logits");
    for (const std::string& name : kModels) {
        INFO(name);
        const StoredModel stored(fixture_folder(name));
        CHECK(relative_l2(logits_of(stored, fixture), fixture.floats(name)) <= kModelTolerance);
    }
}

TEST_CASE("every weight comes back from every format", "[interop]") {
    const ScratchFolder scratch;
    for (const std::string& name : kModels) {
        INFO(name);
        const StoredModel stored(fixture_folder(name) + "/");
        const Floats want = weights_of(stored);
        Floats rounded;
        for (const float x : want) rounded.push_back(to_float(to_bf16(x)));
        const bool is_gpt2 = name == "gpt2_bare";
        for (const std::string format_name : {"hf", "llmc"}) {
            if (format_name == "llmc" && !is_gpt2) continue;
            for (const DType dtype : {DType::f32, DType::bf16}) {
                const std::string out = scratch / (name + format_name + name_of(dtype));
                const std::string said = export_model(stored, format_name, out, dtype);
                CHECK_FALSE(contains(said, "transformers has no class"));
                CHECK_FALSE(fs::exists(out + "/modeling_anvil.py"));
                const StoredModel back(format_name == "llmc" ? out + "/model.bin" : out);
                CHECK(same_model(back.shape(), stored.shape()));
                CHECK(back.dtype() == dtype);
                CHECK(weights_of(back) == (dtype == DType::bf16 ? rounded : want));
            }
        }
        CHECK(contains(error_of([&] { export_model(stored, "hf", scratch / (name + "hfF32"), DType::f32); }),
                       "is not empty: give a new one"));
    }
    // Only models that the format can represent.
    const StoredModel llama(fixture_folder("llama")), gpt2(fixture_folder("gpt2"));
    CHECK(contains(error_of([&] { export_model(llama, "llmc", scratch / "no", DType::f32); }),
                   "and this is another model; use --format hf"));
    for (const std::pair<const char*, const char*>& refused :
         {std::pair{"nanochat", "writes GPT-2, Llama, Qwen2, Qwen3 and SmolLM3, and this is another model"},
          {"yarn", "rotary-factor = 8, which it takes of Llamas with rotary-scaling = llama3 alone"},
          {"mistral_window", "layers that see a window of short-window 2, and llama.cpp has none for it"},
          {"qwen2", "layers that see a window of short-window 1"}}) {
        const StoredModel model(fixture_folder(refused.first));
        CHECK(contains(error_of([&] { export_model(model, "gguf", scratch / "no", DType::f32); }), refused.second));
    }
    Copy every_third("smollm3");
    every_third.change_config([](json& config) { config["no_rope_layers"] = {1, 1, 0, 1, 1}; });
    CHECK(contains(error_of([&] { export_model(StoredModel(every_third.path), "gguf", scratch / "no", DType::f32); }),
                   "this model has rotary-pattern = RRNRR, and llama.cpp's smollm3 has RRRN; use --format hf"));
    CHECK(contains(error_of([&] { export_model(gpt2, "llmc", scratch / "no", DType::f32); }), "4 C hidden channels"));
    CHECK(!fs::exists(scratch / "no"));
    CHECK(!fs::exists(scratch / "no.tmp"));
}

TEST_CASE("what a Mistral's config leaves out has Mistral's defaults", "[interop]") {
    const auto error_without = [](const char* field, int64_t positions) {
        const Copy copy("mistral");
        copy.change_config([&](json& config) {
            config.erase(field);
            config["max_position_embeddings"] = positions;
        });
        return copy.error();
    };
    // Eight heads of keys and values, of two heads; a window of 4096, which is none for a context as long.
    CHECK(contains(error_without("num_key_value_heads", 6), "expected each to be a multiple of the next"));
    CHECK(error_without("sliding_window", 4096) == "");
    CHECK(error_without("sliding_window", 4097) == "");
    const auto windows_without = [](int64_t positions) {
        const Copy copy("mistral");
        copy.change_config([&](json& config) {
            config.erase("sliding_window");
            config["max_position_embeddings"] = positions;
        });
        const GptShape shape = StoredModel(copy.path).shape();
        return layer_windows(shape.architecture, shape.num_layers, shape.max_seq_len);
    };
    CHECK(windows_without(4096) == std::vector<int64_t>{-1, -1});
    CHECK(windows_without(4097) == std::vector<int64_t>{4095, 4095});
}

TEST_CASE("a successor of Llama is written as the class that has its switches", "[interop]") {
    const auto type_of = [](const GptShape& shape) {
        const std::string text = model_config(shape, DType::f32);
        CHECK(same_model(read_model_config(text, "config").shape, shape));
        return json::parse(text)["model_type"].get<std::string>();
    };
    for (const char* name : {"llama", "qwen2", "qwen3", "smollm3", "mistral"}) {
        // mistral without a window is a Llama
        const std::string folder = name + std::string(name == std::string("mistral") ? "_window" : "");
        CHECK(type_of(StoredModel(fixture_folder(folder)).shape()) == name);
    }
    const GptShape llama = StoredModel(fixture_folder("llama31")).shape();
    CHECK(llama.architecture.rotary.scaling == RotaryScaling{8, 1, 4, 8});
    CHECK(llama.head_channels == 8);
    const auto changed = [&](auto&& change) {
        GptShape shape = llama;
        change(shape.architecture);
        return type_of(shape);
    };
    // The last layer sees all.
    CHECK(changed([](Architecture& a) { a.windows = "S", a.short_window = 2; }) == "ministral");
    CHECK(changed([](Architecture& a) { a.qkv_biases = a.qk_rmsnorm = true; }) == "anvil");
    CHECK(changed([](Architecture& a) { a.qkv_biases = true, a.rotary_layers = "RN"; }) == "anvil");
    CHECK(changed([](Architecture& a) { a.qkv_biases = true, a.windows = "S", a.short_window = 2; }) == "qwen2");
    CHECK(changed([](Architecture& a) { a.rotary_layers = "RN", a.windows = "S", a.short_window = 2; }) == "smollm3");
    CHECK(changed([](Architecture& a) { a.score_scale = 0.5; }) == "anvil");
}

TEST_CASE("what a config of Llama's successors leaves out has that family's defaults", "[interop]") {
    const auto shape_without = [](const char* name, std::vector<const char*> fields) {
        json config = json::parse(read_file(fixture_folder(name) + "/config.json"));
        config["num_attention_heads"] = 32, config["hidden_size"] = 64;
        for (const char* field : fields) config.erase(field);
        return read_model_config(config.dump(), "config").shape;
    };
    CHECK(shape_without("llama", {"num_key_value_heads"}).num_kv_heads == 32);
    CHECK(shape_without("qwen2", {"num_key_value_heads"}).num_kv_heads == 32);
    CHECK(shape_without("smollm3", {"num_key_value_heads"}).num_kv_heads == 4);
    CHECK(shape_without("qwen3", {"head_dim"}).head_size() == 128);
    CHECK(shape_without("qwen2", {"head_dim"}).head_size() == 2);
    CHECK(shape_without("smollm3", {"rope_parameters"}).architecture.rotary.base == 2e6);
    CHECK(shape_without("qwen3", {"rope_parameters"}).architecture.rotary.base == 1e4);
    CHECK(shape_without("smollm3", {"tie_word_embeddings"}).architecture.tied_head);
    CHECK(shape_without("qwen2", {"max_position_embeddings"}).max_seq_len == 32768);
    CHECK(shape_without("smollm3", {"no_rope_layers"}).architecture.rotary_layers == "RRRNR");
    CHECK(shape_without("qwen2", {"use_sliding_window", "layer_types"}).architecture.windows == "L");
    const Architecture a = shape_without("qwen2", {"layer_types"}).architecture;
    CHECK((a.windows == "LS" && a.short_window == 1 && !a.full_last_layer));
    CHECK(shape_without("qwen2", {"layer_types", "max_window_layers"}).architecture.windows == "L");
}

TEST_CASE("a nanochat is written for transformers' own class as far as that goes, else with code", "[interop]") {
    GptShape plain = StoredModel(fixture_folder("nanochat")).shape();
    CHECK(family_of(plain) == ModelFamily::nanochat);
    Architecture& a = plain.architecture;
    const Architecture kept = a;
    const auto differs = [&](auto& field, auto value) {
        field = value;
        const ModelFamily family = family_of(plain);
        const GptShape back = read_model_config(model_config(plain, DType::f32), "config").shape;
        a = kept;
        return family == ModelFamily::anvil && same_model(back, back);
    };
    CHECK(differs(a.value_embeddings, true));
    CHECK(differs(a.residual_lambdas, true));
    CHECK(differs(a.smear, true));
    CHECK(differs(a.backout, true));
    CHECK(differs(a.embedding_norm, false));
    CHECK(differs(a.rotary.scale, 1.2f));
    CHECK(differs(a.rotary.eps, 1e-6f));
    CHECK(differs(a.rotary.clockwise, false));
    CHECK(differs(a.rotary.half_truncated, true));
    CHECK(differs(a.score_scale, 0.12));
    CHECK(differs(a.softcap.kind, Softcap::Kind::isru));
    CHECK(differs(a.norm, NormKind::rmsnorm));
    CHECK(differs(a.biases, true));
    a.windows = "SL";
    CHECK(family_of(plain) == ModelFamily::nanochat);  // no window is shorter than the context
    a.short_window = 2;
    CHECK(family_of(plain) == ModelFamily::anvil);
    a = kept;
    for (const Softcap softcap : {Softcap{}, Softcap{Softcap::Kind::tanh, 3}}) {
        a.softcap = softcap;
        CHECK(family_of(plain) == ModelFamily::nanochat);
        CHECK(same_model(read_model_config(model_config(plain, DType::f32), "config").shape, plain));
    }
}

TEST_CASE("a model that transformers has no class for is written with one", "[interop]") {
    const ScratchFolder scratch;
    for (const std::string name : {"stage-a", "nanochat"}) {
        INFO(name);
        const GptShape shape{.num_layers = 2,
                             .num_heads = 2,
                             .channels = 32,
                             .max_seq_len = 8,
                             .vocab_size = 37,
                             .architecture = find_architecture(name)};
        const ParameterList list(shape);
        const std::string path = scratch / name;
        make_folders(path);
        std::vector<Tensor> tensors;
        const std::vector<StoredTensor> stored = stored_tensors(list, ModelFamily::anvil, DType::f32);
        for (const StoredTensor& s : stored) tensors.push_back(s.tensor);
        SafetensorsWriter file(path + "/model.safetensors", tensors);
        for (size_t i = 0; i < stored.size(); i++)
            file.write(randn(size_t(stored[i].tensor.size()), i).data(),
                       size_t(stored[i].tensor.size()) * sizeof(float));
        file.finish();
        put_file(path + "/config.json", model_config(shape, DType::f32));

        const StoredModel model(path);
        CHECK(contains(export_model(model, "hf", path + "_hf", DType::f32), "trust_remote_code=True"));
        CHECK(read_file(path + "_hf/modeling_anvil.py") == read_file("python/anvil/modeling_anvil.py"));
        const json config = json::parse(read_file(path + "_hf/config.json"));
        CHECK(config["auto_map"]["AutoModelForCausalLM"] == "modeling_anvil.AnvilForCausalLM");
        CHECK(config["eos_token_id"].is_null());
        const StoredModel back(path + "_hf");
        CHECK(same_model(back.shape(), shape));
        CHECK(weights_of(back) == weights_of(model));
        CHECK(contains(error_of([&] { export_model(model, "gguf", path + "_gguf", DType::f32); }), "use --format hf"));
    }
}

TEST_CASE("tokenizers for other programs", "[interop]") {
    const std::string gpt2 = read_file("test/fixtures/tokenizers/gpt2.json");
    const ByteLevelTokenizer tokenizer = read_byte_level(gpt2);
    CHECK(tokenizer.why == "");
    REQUIRE(tokenizer.tokens.size() > 256);
    CHECK(tokenizer.merges.size() + 257 == tokenizer.tokens.size());
    const EndToken end = find_end_token(gpt2);
    CHECK(end.text == "<|endoftext|>");
    REQUIRE((end.id >= 0 && size_t(end.id) < tokenizer.tokens.size()));
    CHECK(tokenizer.tokens[size_t(end.id)].text == end.text);
    for (size_t id = 0; id < tokenizer.tokens.size(); id++) {
        CHECK(tokenizer.tokens[id].is_special == (int64_t(id) == end.id));
        CHECK(tokenizer.tokens[id].is_added == (int64_t(id) == end.id));
    }
    const json config = json::parse(tokenizer_config(gpt2, 77));
    CHECK(config["eos_token"] == end.text);
    CHECK(config["model_max_length"] == 77);

    CHECK(
        contains(read_byte_level(read_file("test/fixtures/tokenizers/nanochat.json")).why, "cuts text in a way that"));
    for (const auto& [name, pre] :
         {std::pair{"llama3", "dbrx"}, {"qwen2", "qwen2"}, {"smollm", "smollm"}, {"o200k", "gpt-4o"}})
        CHECK(read_byte_level(read_file(format("test/fixtures/tokenizers/%s.json", name))).pre == pre);
    json llama3 = json::parse(read_file("test/fixtures/tokenizers/llama3.json"));
    CHECK(read_byte_level(llama3.dump()).begin_token == -1);
    llama3["model"]["ignore_merges"] = true;
    const std::string begin = "<|begin_of_text|>";
    llama3["post_processor"] = {
        {"type", "Sequence"},
        {"processors",
         {{{"type", "ByteLevel"}},
          {{"type", "TemplateProcessing"},
           {"single", {{{"SpecialToken", {{"id", begin}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}}}}}};
    const ByteLevelTokenizer with_begin = read_byte_level(llama3.dump());
    CHECK(with_begin.pre == "llama-bpe");
    REQUIRE(with_begin.begin_token >= 0);
    CHECK(with_begin.tokens[size_t(with_begin.begin_token)].text == begin);

    CHECK(contains(read_byte_level("{}").why, "it is no BPE"));
    CHECK(contains(read_byte_level("[").why, "it is no BPE"));
    CHECK(find_end_token("[1").id == -1);
    CHECK(!json::parse(tokenizer_config("", 8)).contains("eos_token"));

    const std::string nanochat = read_file("test/fixtures/tokenizers/nanochat.json");
    CHECK(find_end_of_answer(gpt2, "<|im_end|>") == -1);
    CHECK(find_end_of_answer(nanochat, "") == -1);
    CHECK(find_end_of_answer(nanochat, "<|assistant_end|>") == 4);
    CHECK(read_token_facts("", "", 8).files.empty());
    CHECK(read_token_facts("", gpt2, 8).chat_template == "");
    const TokenFacts facts = read_token_facts("", nanochat, 8);
    const json said = json::parse(facts.files.at("tokenizer_config.json"));
    CHECK(said["chat_template"] == facts.chat_template);
    CHECK(said["model_max_length"] == 8);
    CHECK(contains(facts.chat_template, "<|user_start|>"));
    CHECK(json::parse(facts.files.at("generation_config.json"))["eos_token_id"] == json{4, facts.ids.end[0]});
}

// The 32 bits of a key's value in a GGUF file; -1: there is no such key.
int64_t gguf_value(const std::string& content, const std::string& key, size_t skipped_bytes = 0) {
    const size_t at = content.find(key);
    if (at == std::string::npos) return -1;
    int32_t value;
    std::memcpy(&value, content.data() + at + key.size() + 4 + skipped_bytes, 4);
    return value;
}

TEST_CASE("exports keep what the source says of its tokens", "[interop]") {
    const Copy copy("llama");  // with 37 tokens
    json tokenizer = {{"model", {{"type", "BPE"}, {"vocab", json::object()}, {"merges", json::array()}}},
                      {"decoder", {{"type", "ByteLevel"}}},
                      {"added_tokens", json::array()}};
    for (int id = 0; id < 30; id++) tokenizer["model"]["vocab"][std::string(1, char('A' + id))] = id;
    for (const char* text : {"<s>", "</s>", "<|end_of_text|>", "<pad>", "<|eot_id|>", "<think>"}) {
        const size_t id = 30 + tokenizer["added_tokens"].size();
        tokenizer["added_tokens"].push_back({{"id", id}, {"content", text}, {"special", id < 35}});
    }
    put_file(copy.path + "/tokenizer.json", tokenizer.dump());
    const std::string chat_template = "{{ bos_token }}{{ messages[0].content }}<|eot_id|>";
    const json tokenizer_config = {
        {"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}, {"chat_template", chat_template}};
    put_file(copy.path + "/tokenizer_config.json", tokenizer_config.dump());
    const std::string generation = R"({"eos_token_id": [32, 34], "do_sample": true, "temperature": 0.5, "top_k": 7})";
    put_file(copy.path + "/generation_config.json", generation);
    const auto say = [&](const json& begin, const json& end, const json& pad) {
        copy.change_config([&](json& config) {
            config["bos_token_id"] = begin, config["eos_token_id"] = end, config["pad_token_id"] = pad;
        });
    };
    say(30, {32, 34}, 33);
    int exports = 0;
    const auto exported = [&](const char* format_name, const char* file) {
        const std::string out = copy.scratch / std::to_string(exports++);
        export_model(StoredModel(copy.path), format_name, out, DType::f32);
        return fs::exists(out + "/" + file) ? read_file(out + "/" + file) : "";
    };
    const auto config_ids = [&] {
        const json config = json::parse(exported("hf", "config.json"));
        return json{config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]};
    };
    CHECK(config_ids() == json{30, {32, 34}, 33});
    CHECK(exported("hf", "generation_config.json") == generation);
    CHECK(exported("hf", "tokenizer_config.json") == tokenizer_config.dump());
    CHECK(exported("hf", "special_tokens_map.json") == "");

    const std::string gguf = exported("gguf", "model.gguf");
    CHECK(gguf_value(gguf, "tokenizer.ggml.bos_token_id") == 30);
    CHECK(gguf_value(gguf, "tokenizer.ggml.eos_token_id") == 31);  // tokenizer_config.json's
    CHECK(gguf_value(gguf, "tokenizer.ggml.eot_token_id") == 34);  // the template's
    CHECK(gguf_value(gguf, "tokenizer.ggml.eom_token_id") == 32);
    CHECK(gguf_value(gguf, "tokenizer.ggml.padding_token_id") == 33);
    CHECK(gguf_value(gguf, "general.sampling.top_k") == 7);
    CHECK(gguf_value(gguf, "general.sampling.temp") == 0x3F000000);
    const size_t in_file = gguf.find("tokenizer.chat_template");
    REQUIRE(in_file != std::string::npos);
    CHECK(gguf.compare(in_file + 23 + 4 + 8, chat_template.size(), chat_template) == 0);
    // Types of tokens: normal, control, and made from any text.
    for (const auto& [id, type] : {std::pair{29, 1}, {30, 3}, {34, 3}, {35, 4}, {36, 5}})
        CHECK(gguf_value(gguf, "tokenizer.ggml.token_type", 12 + 4 * size_t(id)) == type);

    // A list of named templates: the default one, and llama.cpp's names of the others.
    const auto named = [](const char* name, const char* text) { return json{{"name", name}, {"template", text}}; };
    json several = tokenizer_config;
    several["chat_template"] = {named("tool-use", "T"), named("default", "<|eot_id|> by default"), named("rag", "R")};
    put_file(copy.path + "/tokenizer_config.json", several.dump());
    const auto text_field = [](const std::string& text) {
        return std::string{char(text.size()), 0, 0, 0, 0, 0, 0, 0} + text;
    };
    const std::string with_names = exported("gguf", "model.gguf");
    const std::string is_text{8, 0, 0, 0}, is_list{9, 0, 0, 0};
    CHECK(contains(with_names, "tokenizer.chat_template" + is_text + text_field("<|eot_id|> by default")));
    CHECK(contains(with_names, "tokenizer.chat_template.tool_use" + is_text + text_field("T")));
    CHECK(contains(with_names, "tokenizer.chat_template.rag" + is_text + text_field("R")));
    CHECK(contains(with_names, "tokenizer.chat_templates" + is_list + is_text + std::string{2, 0, 0, 0, 0, 0, 0, 0} +
                                   text_field("rag") + text_field("tool_use")));
    put_file(copy.path + "/tokenizer_config.json", tokenizer_config.dump());

    // What is not said follows from what is.
    put_file(copy.path + "/chat_template.jinja", "<|eot_id|> of a file");
    fs::remove(copy.path + "/generation_config.json");
    CHECK(json::parse(exported("hf", "generation_config.json")) ==
          json{{"bos_token_id", 30}, {"eos_token_id", {34, 31, 32}}, {"pad_token_id", 33}});
    CHECK(exported("hf", "chat_template.jinja") == "<|eot_id|> of a file");
    CHECK(contains(exported("gguf", "model.gguf"), "<|eot_id|> of a file"));
    CHECK(gguf_value(exported("gguf", "model.gguf"), "general.sampling.temp") == -1);
    say(nullptr, nullptr, -1);
    CHECK(config_ids() == json{nullptr, nullptr, nullptr});
    copy.change_config([](json& config) { config.erase("bos_token_id"), config.erase("eos_token_id"); });
    CHECK(config_ids() == json{30, 31, nullptr});
    put_file(copy.path + "/special_tokens_map.json", R"({"eos_token": "<|eot_id|>", "pad_token": "<pad>"})");
    put_file(copy.path + "/tokenizer_config.json", "{}");
    copy.change_config([](json& config) { config.erase("pad_token_id"); });
    CHECK(config_ids() == json{nullptr, 34, 33});
    fs::remove(copy.path + "/special_tokens_map.json");
    CHECK(config_ids() == json{32, 32, nullptr});  // by its name
    fs::remove(copy.path + "/tokenizer_config.json");
    CHECK(json::parse(exported("hf", "tokenizer_config.json"))["eos_token"] == "<|end_of_text|>");
}

TEST_CASE("a run's chat template takes the place of its initial model's", "[interop]") {
    const ScratchFolder scratch;
    const std::string folder = scratch / "", nanochat = read_file("test/fixtures/tokenizers/nanochat.json");
    put_file(folder + "tokenizer_config.json", R"({"eos_token": "<|bos|>", "chat_template": "old"})");
    put_file(folder + "generation_config.json", R"({"eos_token_id": 0, "temperature": 0.5})");
    TokenFacts facts = read_token_facts(folder, nanochat, 8, "old");
    CHECK(facts.files.at("generation_config.json") == R"({"eos_token_id": 0, "temperature": 0.5})");
    CHECK(facts.chat_template == "old");
    facts = read_token_facts(folder, nanochat, 8, "<|assistant_end|>");
    const json generation = json::parse(facts.files.at("generation_config.json"));
    CHECK(generation["eos_token_id"] == json{4, facts.text_end});
    CHECK(generation["temperature"] == 0.5);
    CHECK(facts.files.at("chat_template.jinja") == "<|assistant_end|>");
    CHECK(json::parse(facts.files.at("tokenizer_config.json")) == json{{"eos_token", "<|bos|>"}});
}

TEST_CASE("config.json's rotation, layers and fields are read as transformers reads them", "[interop]") {
    const auto with = [](const char* name, const json& changes) {
        json config = json::parse(read_file(fixture_folder(name) + "/config.json"));
        config.update(changes);
        return read_model_config(config.dump(), "config").shape;
    };
    const json llama3 = {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
    const json plain = {{"rope_type", "default"}, {"rope_theta", 77}};
    const auto base = [&](const json& changes) { return with("llama", changes).architecture.rotary.base; };
    CHECK(base({{"rope_theta", 5}, {"rope_scaling", llama3}, {"rope_parameters", plain}}) == 5);
    CHECK(base({{"rope_scaling", llama3}, {"rope_parameters", plain}}) == 1e4);
    CHECK(base({{"rope_theta", 5}, {"rope_scaling", json::object()}, {"rope_parameters", plain}}) == 77);
    CHECK(with("llama", {{"rope_scaling", plain}, {"rope_parameters", llama3}}).architecture.rotary.scaling.factor ==
          1);

    // YaRN's own numbers, and the attention temperature that they imply.
    const RotaryOptions yarn =
        with("qwen2", {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", nullptr}}},
                       {"max_position_embeddings", 96}})
            .architecture.rotary;
    CHECK(yarn.scaling == RotaryScaling{4, 1, 32, 96, RotaryScaling::Kind::yarn});
    CHECK(yarn.scale == float(1 + 0.1 * std::log(4.)));

    const json layers = {{"layer_types", {"full_attention", "sliding_attention"}}, {"sliding_window", 3}};
    const GptShape mixed = with("mistral", layers);
    CHECK(layer_windows(mixed.architecture, 2, 6) == std::vector<int64_t>{-1, 2});
    CHECK(std::string(model_type_of(mixed)) == "ministral");
    const GptShape all = with("mistral", {{"layer_types", nullptr}, {"sliding_window", 3}});
    CHECK(layer_windows(all.architecture, 2, 6) == std::vector<int64_t>{2, 2});

    const json harmless = {{"unsloth_fixed", true}, {"attn_implementation", "sdpa"}, {"hidden_act", "swish"},
                           {"temperature", 0.5},    {"is_encoder_decoder", false},   {"partial_rotary_factor", 1}};
    CHECK(same_model(with("llama", harmless), with("llama", json::object())));
    // Also in a config of Anvil's own.
    const GptShape ours{.num_layers = 2,
                        .num_heads = 2,
                        .channels = 32,
                        .max_seq_len = 8,
                        .vocab_size = 37,
                        .architecture = find_architecture("nanochat")};
    json config = json::parse(model_config(ours, DType::f32, {}, "modeling_anvil"));
    CHECK(same_model(read_model_config(config.dump(), "config").shape, ours));
    config["stream-cap"] = 0.001;
    CHECK(contains(error_of([&] { read_model_config(config.dump(), "config"); }),
                   "\"stream-cap\": 0.001: a field that Anvil does not know"));
}

TEST_CASE("a head in the file counts, whatever config.json says", "[interop]") {
    const auto renamed = [](const Copy& copy, const char* from, const char* to) {
        copy.change_header([&](json& header) {
            header[to] = header[from];
            header.erase(from);
        });
    };
    const Copy another("llama");  // not tied: its head differs from the embeddings
    another.change_config([](json& config) { config["tie_word_embeddings"] = true; });
    CHECK(!StoredModel(another.path).shape().architecture.tied_head);
    CHECK(weights_of(StoredModel(another.path)) == weights_of(StoredModel(fixture_folder("llama"))));
    const Copy alone("llama_tied");
    renamed(alone, "model.embed_tokens.weight", "lm_head.weight");
    CHECK(StoredModel(alone.path).shape().architecture.tied_head);
    CHECK(weights_of(StoredModel(alone.path)) == weights_of(StoredModel(fixture_folder("llama_tied"))));
    alone.change_config([](json& config) { config["tie_word_embeddings"] = false; });
    CHECK(contains(alone.error(), "tensor \"model.embed_tokens.weight\" is missing"));

    const Copy adapted("llama");
    put_file(adapted.path + "/adapter_config.json", "{}");
    CHECK(contains(adapted.error(), "an adapter of PEFT (LoRA) beside a whole model"));
    fs::remove(adapted.path + "/config.json");
    CHECK(contains(adapted.error(), "an adapter of PEFT (LoRA) beside a whole model"));
}

TEST_CASE("half precision is read exactly", "[interop]") {
    CHECK(half_to_float(0x3C00) == 1);
    CHECK(half_to_float(0xC500) == -5);
    CHECK(half_to_float(0x7BFF) == 65504);
    CHECK(half_to_float(0x0400) == 0x1p-14f);
    CHECK(half_to_float(0x0001) == 0x1p-24f);
    CHECK(half_to_float(0x83FF) == -1023 * 0x1p-24f);
    CHECK(half_to_float(0xFC00) == -std::numeric_limits<float>::infinity());
    CHECK(std::isnan(half_to_float(0x7E00)));
    CHECK(std::signbit(half_to_float(0x8000)));
}

TEST_CASE("configs of models that Anvil does not have are refused, and the field named", "[interop]") {
    struct Case {
        std::string model, field;
        json value;
        std::string part;
    };
    const std::vector<Case> cases = {
        {"gpt2", "model_type", "gemma",
         "\"model_type\": \"gemma\": expected one of gpt2, llama, mistral, ministral, qwen2, qwen3, smollm3, nanochat, "
         "anvil"},
        {"gpt2", "model_type", nullptr, "\"model_type\": nothing: expected one of"},
        {"gpt2", "activation_function", "gelu", "\"activation_function\": \"gelu\": expected gelu_new"},
        {"gpt2", "scale_attn_weights", false, "expected true: Anvil has no such model"},
        {"gpt2", "scale_attn_by_inverse_layer_idx", true, "expected false"},
        {"gpt2", "add_cross_attention", true, "expected false"},
        {"gpt2", "n_layer", 0, "\"n_layer\": 0: expected an integer from 1 to 1000"},
        {"gpt2", "n_layer", -1, "expected an integer"},
        {"gpt2", "n_embd", uint64_t(1) << 63, "expected an integer from 1 to 4194304"},
        {"gpt2", "n_head", "2", "expected an integer"},
        {"gpt2", "vocab_size", nullptr, "\"vocab_size\" is missing"},
        {"gpt2", "n_head", 3, "expected each to be a multiple of the next"},
        {"gpt2", "layer_norm_epsilon", 0, "expected a number above 0"},
        {"gpt2", "tie_word_embeddings", 1, "expected true or false"},
        {"llama", "hidden_act", "gelu", "expected silu"},
        {"llama", "attention_bias", true, "expected false"},
        {"llama", "mlp_bias", true, "expected false"},
        {"llama", "head_dim", 8, "tensor \"model.layers.0.self_attn.q_proj.weight\" is BF16 [8, 8], expected"},
        {"llama", "head_dim", 7, "\"head_dim\": 7: expected heads of even size"},
        {"llama", "rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}}, "expected a number \"low_freq_factor\""},
        {"llama", "rope_scaling", {{"type", "linear"}, {"factor", 2}}, "expected rope_type default, llama3 or yarn"},
        {"yarn",
         "rope_parameters",
         {{"rope_type", "yarn"}, {"factor", 8}, {"mscale", 1}},
         "expected no field \"mscale\""},
        {"yarn",
         "rope_parameters",
         {{"rope_type", "yarn"}, {"factor", 8}, {"truncate", false}},
         "expected truncate true"},
        {"yarn",
         "rope_parameters",
         {{"rope_type", "yarn"}, {"factor", 8}, {"beta_slow", 32}},
         "expected beta_slow below beta_fast"},
        {"nanochat",
         "rope_parameters",
         {{"rope_type", "yarn"}, {"factor", 1}, {"attention_factor", 2}},
         "expected rope_type default"},
        {"llama31",
         "rope_parameters",
         {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
         "expected low_freq_factor below high_freq_factor"},
        {"llama", "rope_parameters", {{"rope_type", "default"}, {"beta_fast", 2}}, "expected no field \"beta_fast\""},
        {"llama", "embedding_multiplier", 2, "\"embedding_multiplier\": 2: a field that Anvil does not know"},
        {"gpt2", "embedding_multiplier", 2, "\"embedding_multiplier\": 2: a field that Anvil does not know"},
        {"nanochat", "embedding_multiplier", 2, "\"embedding_multiplier\": 2: a field that Anvil does not know"},
        {"nanochat", "head_dim", 8, "\"head_dim\": 8: expected hidden_size / num_attention_heads"},
        {"qwen2", "layer_types", {"full_attention"}, "expected full_attention or sliding_attention for each layer"},
        {"qwen3", "attention_bias", true, "expected false"},
        {"smollm3", "no_rope_layers", {1, 1, 1, 2, 1}, "expected 0 or 1 for each layer"},
        {"llama", "rope_parameters", 3, "expected an object"},
        {"mistral", "sliding_window", 1, "\"sliding_window\": 1: expected at least 2"},
        {"mistral", "hidden_act", "gelu", "expected silu"},
        {"nanochat", "hidden_act", "silu", "expected relu2"},
        {"nanochat", "attention_bias", true, "expected false"},
        {"nanochat", "final_logit_softcapping", 0, "expected a number above 0"},
        {"nanochat", "num_key_value_heads", 2, "tensor \"model.layers.0.self_attn.k_proj.weight\" is F32 [4, 8]"},
        {"llama", "rope_parameters", {{"rope_theta", "x"}}, "\"rope_theta\": \"x\": expected a number above 0"},
        // A model whose weights are of other sizes
        {"gpt2", "n_inner", 24,
         "tensor \"transformer.h.0.mlp.c_fc.weight\" is F32 [8, 20], expected F32, F16 or BF16 "},
        {"gpt2", "n_layer", 3, "tensor \"transformer.h.2.ln_1.weight\" is missing"},
        {"gpt2", "n_layer", 1, "tensor \"transformer.h.1.attn.c_attn.bias\" belongs to no part of the model"},
        {"gpt2", "tie_word_embeddings", false, "tensor \"lm_head.weight\" is missing"},
        {"llama", "num_key_value_heads", 2, "tensor \"model.layers.0.self_attn.k_proj.weight\" is BF16 [4, 8]"},
    };
    for (const Case& c : cases) {
        const Copy copy(c.model);
        copy.change_config([&](json& config) { config[c.field] = c.value; });
        const std::string error = copy.error();
        INFO(c.field << " " << c.value << ": expected ..." << c.part << ", got " << error);
        CHECK(error.starts_with("2: /"));
        CHECK(contains(error, c.part));
    }
    const Copy copy("gpt2");
    put_file(copy.path + "/config.json", "[1, 2]");
    CHECK(contains(copy.error(), "config.json: not a JSON object"));
}

TEST_CASE("weights that do not fit are refused, and the tensor named", "[interop]") {
    const Copy missing("gpt2");
    missing.change_header([](json& header) {
        header["transformer.h.0.extra"] = header["transformer.h.0.ln_1.bias"];
        header.erase("transformer.h.0.ln_1.bias");
    });
    CHECK(contains(missing.error(), "tensor \"transformer.h.0.ln_1.bias\" is missing"));
    const Copy integer("gpt2");
    integer.change_header([](json& header) { header["transformer.wte.weight"]["dtype"] = "I32"; });
    CHECK(contains(integer.error(), "tensor \"transformer.wte.weight\" is I32 [37, 8], expected F32, F16 or BF16"));
    const Copy other_type("gpt2");
    other_type.change_header([](json& header) { header["transformer.wte.weight"]["dtype"] = "U32"; });
    CHECK(contains(other_type.error(), "tensor \"transformer.wte.weight\" is U32, expected F32, F16 or BF16"));
    const Copy none("gpt2");
    fs::remove(none.path + "/model.safetensors");
    CHECK(contains(none.error(), "neither model.safetensors nor model.safetensors.index.json"));

    const auto index_error = [](const std::function<void(json&)>& change) {
        const Copy copy("gpt2_bare");
        const std::string path = copy.path + "/model.safetensors.index.json";
        json index = json::parse(read_file(path));
        change(index);
        put_file(path, index.dump());
        return copy.error();
    };
    CHECK(index_error([](json&) {}) == "");
    CHECK(contains(index_error([](json& index) { index["weight_map"] = 1; }), "expected a JSON object with a"));
    CHECK(contains(index_error([](json& index) { index["weight_map"]["wte.weight"] = "../x"; }), "one beside it"));
    CHECK(contains(index_error([](json& index) { index["weight_map"]["wte.weight"] = 3; }), "one beside it"));
    CHECK(contains(index_error([](json& index) { index["weight_map"]["wte.weight"] = "gone"; }), "gone is missing"));
    CHECK(contains(index_error([](json& index) { index["weight_map"].erase("ln_f.bias"); }),
                   "tensor \"ln_f.bias\" is missing"));

    CHECK(contains(error_of([] { StoredModel("test/fixtures/nowhere"); }), "no such file or folder"));
    CHECK(contains(error_of([] { StoredModel("test/fixtures"); }), "no config.json in it, and no checkpoint"));
    CHECK(contains(error_of([] { StoredModel("Makefile"); }), "is not a model file of llm.c"));
}

TEST_CASE("a model file of llm.c cut short, or with another header, is refused", "[interop]") {
    const ScratchFolder scratch;
    export_model(StoredModel(fixture_folder("gpt2_bare")), "llmc", scratch / "out", DType::f32);
    const std::string path = scratch / "out/model.bin", good = read_file(path);
    REQUIRE(good.size() % 4 == 0);
    const auto error_with = [&](size_t field, int32_t value) {
        std::string content = good;
        std::memcpy(content.data() + 4 * field, &value, 4);
        put_file(path, content);
        return error_of([&] { StoredModel{path}; });
    };
    CHECK(error_with(0, 20240326) == "");
    CHECK(contains(error_with(0, 20240520), "is not a model file of llm.c"));
    CHECK(contains(error_with(1, 2), "has version 2 of llm.c's model format: expected 3 (fp32) or 5 (bf16)"));
    CHECK(contains(error_with(1, 5), "there are bytes after the last tensor"));
    CHECK(contains(error_with(4, 3), "it was cut short"));
    for (size_t field = 2; field < 8; field++)
        for (const int32_t value : {0, -1, INT32_MIN, INT32_MAX}) {
            INFO(field << " " << value);
            CHECK(error_with(field, value).starts_with("2: /"));
        }
    CHECK(contains(error_with(7, 36), "37 tokens in 36 rows"));
    for (const size_t size : {size_t(0), size_t(3), size_t(1000), good.size() - 4}) {
        put_file(path, good.substr(0, size));
        CHECK(error_of([&] { StoredModel{path}; }).starts_with("2: /"));
    }
}
