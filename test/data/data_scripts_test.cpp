// The scripts of data/ as a user runs them, without a network.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include "test/data/dataset_testing.h"

namespace fs = std::filesystem;

// A copy of the script in a tree of its own, so that the user's data are left alone.
struct ScriptTree {
    ScratchFolder scratch;
    std::string offline = "env -u ANVIL_MIRROR https_proxy=http://127.0.0.1:9 ALL_PROXY=http://127.0.0.1:9 ";
    std::string script = scratch / "data/tinyshakespeare.sh";
    ScriptTree() {
        make_folders(scratch / "data");
        for (const auto& entry : fs::directory_iterator("data"))
            if (entry.path().extension() == ".sh") fs::copy(entry.path(), scratch / "data");
        fs::create_symlink(fs::absolute(program("data/tokenize")), scratch / "data/tokenize");
    }
};

TEST_CASE("tinyshakespeare.sh: a wrong text, no network, a wrong flag, no build", "[data_scripts]") {
    const ScriptTree tree;
    write_file_atomically(tree.scratch / "tinyshakespeare.txt", "To be, or not to be\n");
    const auto refused = [&](const std::string& environment, const std::string& arguments) {
        const Finished finished = run(environment + " " + tree.script + " " + arguments);
        CHECK(finished.exit_code == 2);
        return finished.err;
    };
    CHECK(contains(refused("ANVIL_MIRROR=" + tree.scratch.path, ""), "tinyshakespeare.txt is not tiny Shakespeare"));
    CHECK(contains(refused("ANVIL_MIRROR=" + tree.scratch / "no", ""), "no/tinyshakespeare.txt: no such file"));
    CHECK(contains(refused(tree.offline, ""), "error: cannot download https://"));
    CHECK(contains(run(tree.offline + tree.script).out,
                   "downloading tinyshakespeare.txt (tiny Shakespeare, 1115394 bytes) from https://"));
    CHECK(listing(tree.scratch / "data/tinyshakespeare") == "");
    fs::remove(tree.scratch / "data/tokenize");
    CHECK(contains(refused("", ""), "error: data/tokenize is missing: run make first"));
    CHECK(contains(run(tree.script + " --help").out, "nanoGPT"));
}

TEST_CASE("tiny Shakespeare has nanoGPT's 65 symbols and 1,003,854 + 111,540 tokens", "[data_scripts]") {
    if (!std::getenv("ANVIL_MIRROR")) {
        WARN("not tested: ANVIL_MIRROR is not set to a folder with tinyshakespeare.txt");
        return;
    }
    const ScriptTree tree;
    REQUIRE(run(tree.script).exit_code == 0);
    const std::string folder = tree.scratch / "data/tinyshakespeare";
    const Dataset dataset(folder);
    CHECK(dataset.number("vocab_size") == 65);
    CHECK(dataset.number("train_tokens") == 1003854);
    CHECK(dataset.number("val_tokens") == 111540);
    CHECK(dataset.train + dataset.val == read_file(folder + "/tinyshakespeare.txt"));
    CHECK(tokens_of(folder + "/train_*.bin").at(0) == 18);  // 'F' of "First Citizen", as in nanoGPT's train.bin

    // Now there is a verified copy, which needs no network; a damaged one is not used.
    CHECK(run(tree.offline + tree.script + " --tokenizer byte").exit_code == 0);
    CHECK(Dataset(folder).number("vocab_size") == 256);
    write_file_atomically(folder + "/tinyshakespeare.txt", "To be, or not to be\n");
    const Finished damaged = run(tree.offline + tree.script);
    CHECK(damaged.exit_code == 2);
    CHECK(contains(damaged.out, "is damaged: getting it again"));
}

namespace {
// A copy of the scripts beside a data/tokenize, a network of files in a folder, and a mirror of others.
struct FakeNetwork : ScriptTree {
    FakeNetwork() {
        for (const char* folder : {"bin", "remote", "mirror"}) make_folders(scratch / folder);
        // All but the last ten bytes for who does not ask for the end of a file alone, and what the hub says of it.
        write_file_atomically(scratch / "bin/curl",
                              "#!/bin/sh\nremote=" + scratch / "remote\n" + "echo \"$*\" >>" + scratch / "fetched" + R"(
            case $1 in -sI)
                for url; do :; done
                [ -f "$remote/${url##*/}" ] && echo "X-Linked-ETag: \"$(sha256sum <"$remote/${url##*/}" | cut -c -64)\""
                exit ;;
            esac
            while [ $# -gt 1 ]; do [ "$1" != -o ] || file=$2; shift; done
            remote=$remote/${1##*/}
            [ -f "$remote" ] || exit 22
            have=0; [ ! -f "$file" ] || have=$(stat -c %s "$file")
            [ $have = 0 ] || { tail -c +$((have + 1)) "$remote" >>"$file"; exit; }
            head -c -10 "$remote" >"$file"; exit 18
            )");
        fs::permissions(scratch / "bin/curl", fs::perms::owner_all);
    }
    Finished on_network(const std::string& command, const std::string& environment = "") const {
        return run("env -u ANVIL_MIRROR PATH=" + scratch / "bin:$PATH " + environment + " " + scratch / "data/" +
                   command);
    }
    Finished on_mirror(const std::string& command) const {
        return run("env ANVIL_MIRROR=" + scratch / "mirror " + scratch / "data/" + command);
    }
    std::string fetched() const { return read_file(scratch / "fetched"); }
    void replace_in(const std::string& name, const std::string& from, const std::string& to) const {
        std::string text = read_file(scratch / "data/" + name);
        REQUIRE(contains(text, from));
        FileWriter(scratch / "data/" + name).write(text.data(), text.replace(text.find(from), from.size(), to).size());
    }
};

void stories_into(const std::string& folder) {
    std::string text;
    for (int i = 0; i < 50; i++) text += "Story " + std::to_string(i) + " of a cat.\n<|endoftext|>\n";
    write_file_atomically(folder + "/TinyStoriesV2-GPT4-train.txt", text);
    write_file_atomically(folder + "/TinyStoriesV2-GPT4-valid.txt", "A story of a dog.\n<|endoftext|>\n");
}
}  // namespace

TEST_CASE("tinystories.sh gets two files, verified, and makes shards of them", "[data_scripts]") {
    const FakeNetwork network;
    const std::string folder = network.scratch / "data/tinystories";
    stories_into(network.scratch / "remote");
    for (int cut = 0; cut < 2; cut++) {
        const Finished finished =
            network.on_network("tinystories.sh --tokenizer byte", "HF_ENDPOINT=https://hub.test/");
        CHECK(finished.exit_code == 2);
        CHECK(contains(finished.err, "run this again to go on"));
        CHECK(contains(finished.out, "TinyStories: 2.2 GB of text"));
    }
    const Finished done = network.on_network("tinystories.sh --tokenizer byte", "HF_ENDPOINT=https://hub.test/");
    INFO(done.err);
    REQUIRE(done.exit_code == 0);
    CHECK(contains(network.fetched(),
                   "https://hub.test/datasets/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-train.txt"));
    CHECK(contains(Dataset(folder).train, std::string("Story 7 of a cat.\0Story 8", 25)));
    CHECK(Dataset(folder).val == std::string("\0A story of a dog.", 18));
    CHECK(Dataset(folder).number("documents") == 51);

    // Nothing is fetched again. What is not what the hub says is refused; the mirror stands for it.
    const std::string before = network.fetched();
    CHECK(network.on_network("tinystories.sh --tokenizer byte").exit_code == 0);
    CHECK(network.fetched() == before);
    fs::remove(folder + "/TinyStoriesV2-GPT4-valid.txt");
    write_file_atomically(folder + "/TinyStoriesV2-GPT4-valid.txt.part", "another <|endoftext|>");
    const Finished wrong = network.on_network("tinystories.sh --tokenizer byte");
    CHECK(contains(wrong.err, "TinyStoriesV2-GPT4-valid.txt is not what TinyStories has by this name, or was cut"));
    CHECK_FALSE(fs::exists(folder + "/TinyStoriesV2-GPT4-valid.txt.part"));
    CHECK(contains(network.on_mirror("tinystories.sh").err, "no such file"));
    stories_into(network.scratch / "mirror");
    REQUIRE(network.on_mirror("tinystories.sh --train-tokenizer --vocab-size 280 --val-fraction 0").exit_code == 0);
    CHECK(load_tokenizer(folder + "/tokenizer.json").vocab_size() == 280);
}

TEST_CASE("gpt2_tokenizer.sh and hellaswag.sh take the files that they name, and no others", "[data_scripts]") {
    const FakeNetwork network;
    for (const auto& [script, file] : {std::pair<std::string, std::string>{"gpt2_tokenizer.sh", "vocab.bpe"},
                                       {"hellaswag.sh", "hellaswag_val.jsonl"}}) {
        write_file_atomically(network.scratch / "mirror/" + file, "another");
        const Finished wrong = network.on_mirror(script);
        CHECK(wrong.exit_code == 2);
        CHECK(contains(wrong.err, "or was cut"));
        CHECK(contains(network.on_mirror(script + " more").err, "error: more: expected no arguments"));
    }
    // The checksum of git: `printf 'a question\n' | git hash-object --stdin`
    network.replace_in("hellaswag.sh", "0f5ee25d72216f12317d5d8a7b92deafa423d81e",
                       "fa090e28e6c5abf074b06a55c12ab70135a75ceb");
    write_file_atomically(network.scratch / "mirror/hellaswag_val.jsonl", "a question\n");
    const Finished right = network.on_mirror("hellaswag.sh");
    CHECK(right.exit_code == 0);
    CHECK(right.out == network.scratch / "data/hellaswag/hellaswag_val.jsonl\n");
    CHECK(read_file(network.scratch / "data/hellaswag/hellaswag_val.jsonl") == "a question\n");
}

TEST_CASE("a server that cannot go on in the middle of a file sends all of it", "[data_scripts]") {
    const FakeNetwork network;
    network.replace_in("hellaswag.sh", "0f5ee25d72216f12317d5d8a7b92deafa423d81e",
                       "fa090e28e6c5abf074b06a55c12ab70135a75ceb");
    const std::string file = network.scratch / "data/hellaswag/hellaswag_val.jsonl";
    for (const char* code : {"33", "36"}) {
        write_file_atomically(network.scratch / "bin/curl",
                              "#!/bin/sh\nfor word; do [ \"$last\" != -o ] || file=$word; last=$word; done\n"
                              "[ ! -e \"$file\" ] || { echo 'no byte ranges' >&2; exit " +
                                  std::string(code) + "; }\necho 'a question' >\"$file\"\n");
        fs::permissions(network.scratch / "bin/curl", fs::perms::owner_all);
        make_folders(network.scratch / "data/hellaswag");
        write_file_atomically(file + ".part", "a que");
        const Finished done = network.on_network("hellaswag.sh");
        INFO(done.err);
        CHECK(done.exit_code == 0);
        CHECK(read_file(file) == "a question\n");
        CHECK_FALSE(fs::exists(file + ".part"));
        fs::remove(file);
    }
}

TEST_CASE("core.sh unpacks an intact archive of questions, and no other", "[data_scripts]") {
    const FakeNetwork network;
    const std::string zip = network.scratch / "mirror/eval_bundle.zip";
    const auto pack = [&](const std::string& name) {
        const std::string file =
            "zipfile.ZipFile('" + zip + "', 'w').writestr('eval_bundle/" + name + "', 'icl_tasks')";
        REQUIRE(run("python3 -c \"import zipfile; " + file + "\"").exit_code == 0);
    };
    pack("another.yaml");
    CHECK(contains(network.on_mirror("core.sh").err, "holds no eval_bundle/core.yaml"));
    fs::remove_all(network.scratch / "data/core");
    pack("core.yaml");
    std::string damaged = read_file(zip);
    REQUIRE(contains(damaged, "icl_tasks"));
    damaged[damaged.find("icl_tasks")]++;
    write_file_atomically(zip, damaged);
    const Finished wrong = network.on_mirror("core.sh");
    CHECK(wrong.exit_code == 2);
    CHECK(contains(wrong.err, "eval_bundle.zip is not CORE's questions"));
    CHECK_FALSE(fs::exists(network.scratch / "data/core/eval_bundle"));
    pack("core.yaml");
    for (int again = 0; again < 2; again++) {
        const Finished right = network.on_mirror("core.sh");
        INFO(right.err);
        CHECK(right.exit_code == 0);
        CHECK(right.out == network.scratch / "data/core/eval_bundle\n");
    }
    CHECK(read_file(network.scratch / "data/core/eval_bundle/core.yaml") == "icl_tasks");
}

TEST_CASE("--tokenizer gpt2 gets it by the script beside the program", "[data_scripts]") {
    const char* mirror = std::getenv("ANVIL_MIRROR");
    if (!mirror || !fs::exists(mirror / fs::path("vocab.bpe"))) {
        WARN("not tested: ANVIL_MIRROR is not set to a folder with vocab.bpe");
        return;
    }
    const FakeNetwork network;
    fs::remove(network.scratch / "data/tokenize");
    fs::copy(program("data/tokenize"), network.scratch / "data");
    const std::string command =
        network.scratch / "data/tokenize --stories 2000 --tokenizer gpt2 --out " + network.scratch / "out";
    REQUIRE(run(command).exit_code == 0);
    CHECK(Dataset(network.scratch / "out").number("vocab_size") == 50257);
    CHECK(run("env -u ANVIL_MIRROR " + command).exit_code == 0);  // it is there
    fs::remove_all(network.scratch / "data/gpt2");
    const Finished none = run("env ANVIL_MIRROR=" + network.scratch / "mirror " + command);
    CHECK(none.exit_code == 2);
    CHECK(contains(none.err, "vocab.bpe: no such file"));
}

TEST_CASE("fineweb.sh and climbmix.sh: what, how much, from where", "[data_scripts]") {
    const FakeNetwork network;
    std::string shard(1024 + 6, '\0');
    const int32_t header[3] = {20240520, 1, 3};
    shard.replace(0, sizeof header, reinterpret_cast<const char*>(header), sizeof header);
    for (const char* name : {"val_000000", "train_000001", "train_000002"})
        write_file_atomically(network.scratch / "mirror/finewebedu_" + name + ".bin", shard);
    const Finished edu = network.on_mirror("fineweb.sh edu 2");
    CHECK(edu.exit_code == 0);
    CHECK(contains(edu.out,
                   "FineWeb-Edu's 10B sample: 2 files to train on and one to validate on; to get: 3 of 200 MB, "
                   "0.6 GB, into data/finewebedu10B\n"));
    CHECK(edu.out.ends_with("\ndata/finewebedu10B\n"));
    CHECK(open_shards(network.scratch / "data/finewebedu10B/finewebedu_train_*.bin").size() == 2);
    CHECK(contains(network.on_mirror("fineweb.sh edu 2").out, "to get: 0 of"));
    CHECK(contains(network.on_mirror("fineweb.sh edu 100").err, "--shards 100: FineWeb-Edu's 10B sample has 99"));
    CHECK(contains(network.on_mirror("fineweb.sh 10B 104").err, "has 103"));
    CHECK(contains(network.on_mirror("fineweb.sh 20B").err, "'20B': expected 1 to 1030"));
    const Finished list = network.on_mirror("fineweb.sh edu 2 --list --out " + network.scratch / "listed");
    CHECK(list.exit_code == 0);
    CHECK(contains(list.out,
                   "--data-order shards --fetch 'cp \"" + network.scratch / "mirror/$ANVIL_SHARD\" \"$ANVIL_SH"));
    CHECK(listing(network.scratch / "listed") == "finewebedu_val_000000.bin shards.json ");
    const std::vector<ListedShard> listed = read_shard_list(network.scratch / "listed/shards.json");
    REQUIRE(listed.size() == 3);
    CHECK(listed[2].name == "finewebedu_val_000000.bin");
    CHECK(listed[2].tokens == 3);
    network.on_network("fineweb.sh 100B 1", "HF_ENDPOINT=http://hub.test");
    CHECK(contains(network.fetched(),
                   "http://hub.test/datasets/kjj0/fineweb100B-gpt2/resolve/main/fineweb_val_000000.bin"));

    for (const char* name : {"shard_06542.parquet", "shard_00000.parquet"})
        write_file_atomically(network.scratch / "mirror/" + name, "PAR1 some rows PAR1");
    const Finished mix = network.on_mirror("climbmix.sh 1 --out " + network.scratch / "mix");
    CHECK(mix.exit_code == 0);
    CHECK(contains(mix.out, "ClimbMix: 1 files to train on and one to validate on, about 0.2 GB"));
    CHECK(listing(network.scratch / "mix") == "shard_00000.parquet shard_06542.parquet ");
    write_file_atomically(network.scratch / "mirror/shard_00001.parquet", "PAR1 some ro");
    CHECK(contains(network.on_mirror("climbmix.sh 2 --out " + network.scratch / "mix").err,
                   "shard_00001.parquet is not a whole .parquet file"));
    // What comes over the network must be what the hub says: here it cuts a file, and then has another.
    for (const char* name : {"shard_06542.parquet", "shard_00000.parquet"})
        write_file_atomically(network.scratch / "remote/" + name, "PAR1 rows of the hub PAR1");
    const std::string from_hub = "climbmix.sh 1 --out " + network.scratch / "hub";
    for (int cut = 0; cut < 2; cut++) CHECK(network.on_network(from_hub).exit_code == 2);
    CHECK(network.on_network(from_hub).exit_code == 0);
    fs::remove(network.scratch / "hub/shard_00000.parquet");
    write_file_atomically(network.scratch / "hub/shard_00000.parquet.part", "PAR1 another");
    CHECK(contains(network.on_network(from_hub).err, "is not a whole .parquet file, as the hub has it"));
    CHECK(contains(network.on_mirror("climbmix.sh 7000").err, "'7000' files: expected 1 to 6542"));
    CHECK(contains(network.on_mirror("climbmix.sh --bogus").err, "error: --bogus: expected a number of files"));
}
namespace {
// A checkout's scripts beside a stand-in for the hub, with a cache of its own.
struct FakeHub : ScriptTree {
    std::string home = scratch / "home";
    std::string gpt2 = scratch / "hub/openai-community/gpt2", parts = scratch / "hub/me/parts";
    FakeHub() {
        for (const std::string& folder : {gpt2, parts}) make_folders(folder);
        put_file(gpt2 + "/config.json", "{}");
        put_file(gpt2 + "/model.safetensors", std::string(3000, 'w'));
        put_file(gpt2 + "/tokenizer.json", "{\"model\": {}}");
        put_file(gpt2 + "/pytorch_model.bin", "not wanted");
        put_file(parts + "/config.json", "{}");
        put_file(
            parts + "/model.safetensors.index.json",
            R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}})");
        put_file(parts + "/model-1.safetensors", "one");
        put_file(parts + "/model-2.safetensors", "two");
    }
    static void put_file(const std::string& path, const std::string& text) { write_file_atomically(path, text); }
    Finished get(const std::string& model, const std::string& flag = "") const {
        return run("env -u ANVIL_MIRROR -u HF_HUB_CACHE HF_HOME=" + home + " test/data/fake_hub.py " +
                   scratch / "hub " + flag + " " + scratch / "data/model.sh " + model);
    }
    Finished get_offline(const std::string& model) const {
        return run("HF_HOME=" + home + " " + offline + scratch / "data/model.sh " + model);
    }
    std::string requests() const {
        std::error_code ignored;
        const std::string log = scratch / "hub/log", all = fs::exists(log, ignored) ? read_file(log) : "";
        fs::remove(log, ignored);
        return all;
    }
};
}  // namespace

TEST_CASE("model.sh gets a model of the hub once, verified, and goes on where it was cut", "[data_scripts][plain]") {
    const FakeHub hub;
    const Finished cut = hub.get("gpt2", "--cut");
    CHECK(cut.exit_code == 2);
    CHECK(cut.out.empty());
    CHECK(contains(cut.err, "run this again to go on"));
    hub.requests();
    const Finished done = hub.get("gpt2");
    INFO(done.err);
    REQUIRE(done.exit_code == 0);
    CHECK(contains(hub.requests(), "/model.safetensors bytes=1500-\n"));
    REQUIRE(std::count(done.out.begin(), done.out.end(), '\n') == 1);
    const std::string folder = done.out.substr(0, done.out.size() - 1);
    CHECK(contains(folder, hub.home + "/hub/models--openai-community--gpt2/snapshots/"));
    CHECK(listing(folder) == "config.json model.safetensors tokenizer.json ");
    CHECK(read_file(folder + "/model.safetensors") == std::string(3000, 'w'));
    // The layout in which the hub's own programs look for it: a revision by name, files by the hub's checksums.
    const fs::path store = fs::path(folder).parent_path().parent_path();
    CHECK(read_file(store / "refs/main") == fs::path(folder).filename());
    CHECK(fs::read_symlink(folder + "/config.json") ==
          "../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b");  // `printf '{}' | git hash-object --stdin`
    const std::string sha256 = run("sha256sum <" + hub.gpt2 + "/model.safetensors").out.substr(0, 64);
    CHECK(fs::read_symlink(folder + "/model.safetensors") == "../../blobs/" + sha256);

    // All files are here, so nothing is downloaded.
    CHECK(hub.get("gpt2").out == done.out);
    CHECK(hub.requests().empty());
    CHECK(hub.get_offline("openai-community/gpt2").out == done.out);
    // A byte that has changed is found, and the file got again.
    FakeHub::put_file(fs::canonical(folder + "/config.json"), "[]");
    CHECK(hub.get_offline("gpt2").exit_code == 2);
    CHECK(hub.get("gpt2").exit_code == 0);
    CHECK(read_file(folder + "/config.json") == "{}");

    // What the hub has by now is not what was locked.
    fs::remove_all(hub.home);
    FakeHub::put_file(hub.gpt2 + "/model.safetensors", std::string(3000, 'v'));
    hub.requests();
    const Finished another = hub.get("gpt2");
    CHECK_FALSE(contains(hub.requests(), "/resolve/main/"));  // the revision is locked as well
    CHECK(another.exit_code == 2);
    CHECK(another.out.empty());
    CHECK(contains(another.err, "is not what data/models.lock has, sha256 " + sha256));
    fs::remove(hub.scratch / "data/models.lock");
    CHECK(hub.get("gpt2").exit_code == 0);
}

TEST_CASE("model.sh: weights in parts, a cache that others filled, a mirror", "[data_scripts][plain]") {
    const FakeHub hub;
    const Finished parts = hub.get("me/parts");
    INFO(parts.err);
    REQUIRE(parts.exit_code == 0);
    const std::string folder = parts.out.substr(0, parts.out.size() - 1);
    CHECK(listing(folder) == "config.json model-1.safetensors model-2.safetensors model.safetensors.index.json ");
    // As transformers leaves it, without our lock, which is not written before all can be known.
    const std::string lock = hub.scratch / "data/models.lock", locked = read_file(lock);
    CHECK(std::count(locked.begin(), locked.end(), '\n') == 4);
    fs::remove(lock);
    CHECK(hub.get_offline("me/parts").out == parts.out);
    CHECK_FALSE(fs::exists(lock));
    CHECK(hub.get("me/parts").out == parts.out);
    CHECK(read_file(lock) == locked);

    const std::string mirror = "env ANVIL_MIRROR=" + hub.scratch / "hub/me ";
    CHECK(run(mirror + hub.scratch / "data/model.sh me/parts").out == hub.parts + "\n");
    CHECK(contains(run(mirror + hub.scratch / "data/model.sh gpt2").err, "me/gpt2/config.json: no such file"));
    FakeHub::put_file(hub.parts + "/model-2.safetensors", "too");
    CHECK(contains(run(mirror + hub.scratch / "data/model.sh me/parts").err,
                   "me/parts/model-2.safetensors is not what data/models.lock has"));
}

TEST_CASE("model.sh: no such model, none that is read here, no network", "[data_scripts][plain]") {
    const FakeHub hub;
    const auto refused = [](const Finished& finished) {
        CHECK(finished.exit_code == 2);
        CHECK(finished.out.empty());
        return finished.err;
    };
    CHECK(
        contains(refused(hub.get("gtp2")), "error: gtp2: expected OWNER/NAME of the hub, or one of gpt2 gpt2-medium"));
    CHECK(contains(refused(hub.get("'me/../parts'")), "expected OWNER/NAME"));
    CHECK(contains(refused(hub.get("me/nothing")), "has no me/nothing with a config.json: is the name right?"));
    fs::remove(hub.parts + "/model-2.safetensors");
    CHECK(contains(refused(hub.get("me/parts")), "has no model-2.safetensors in me/parts at revision "));
    fs::remove(hub.gpt2 + "/model.safetensors");
    CHECK(contains(refused(hub.get("gpt2")), "and no model.safetensors: only that format of weights is read here"));
    const std::string offline = refused(hub.get_offline("gpt2-xl"));
    CHECK(contains(offline, "error: https://huggingface.co does not answer, and openai-community/gpt2-xl is not all"));
    CHECK(std::count(offline.begin(), offline.end(), '\n') == 1);
    CHECK_FALSE(fs::exists(hub.scratch / "data/models.lock"));
}

TEST_CASE("make_hellaswag.py without a tokenizer that it can read says how to make one", "[data_scripts]") {
    // Of the two packages only what they do with a file that is none, and without a network.
    const ScratchFolder scratch;
    write_file_atomically(scratch / "tokenizers.py",
                          "class Tokenizer:\n"
                          "    @staticmethod\n"
                          "    def from_file(name):\n"
                          "        raise Exception('expected value at line 1 column 1')\n");
    write_file_atomically(scratch / "tiktoken.py", "def get_encoding(name):\n    raise OSError('no route to host')\n");
    write_file_atomically(scratch / "vocab.bpe", "#version: 0.2\nt h\n");
    for (const auto& [tokenizer, said] :
         {std::pair<std::string, std::string>{scratch / "vocab.bpe", "not a tokenizer.json (expected value at line 1"},
          {"gpt2", "--tokenizer gpt2: tiktoken cannot download its ranks (OSError); give a tokenizer.json"}}) {
        const Finished finished = run("PYTHONPATH=" + scratch.path + " python3 scripts/make_hellaswag.py --tokenizer " +
                                      tokenizer + " questions.jsonl " + scratch / "out.bin");
        CHECK(finished.exit_code == 1);
        CHECK(contains(finished.err, said));
        CHECK(contains(finished.err, "data/tokenize TEXT --tokenizer FILE --out DIR writes DIR/tokenizer.json"));
        CHECK(std::count(finished.err.begin(), finished.err.end(), '\n') == 1);
    }
}
