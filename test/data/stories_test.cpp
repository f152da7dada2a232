// The built-in corpus: its bytes never change, every story has one parse, and its entropy is that of the closed form.
#include <cmath>
#include <map>
#include "llmc/base/hash.h"  // xxh3, hex64
#include "llmc/data/stories.h"
#include "test/testing.h"

namespace {
// Every way in which a text can be read as one story, as the choices that lead to it. Written without tell_story: it
// walks the sentences as they stand in the grammar, braces and all, and tries each sentence and each word.
struct Parser {
    const StoryGrammar& grammar = story_grammar();
    const std::string& text;
    std::map<std::string, int> words;  // by slot, as far as they are known
    std::vector<int> choices;
    std::vector<std::vector<int>> found;

    explicit Parser(const std::string& text) : text(text) { part(0, 0); }

    void part(size_t index, size_t at) {
        if (index == grammar.parts.size()) {
            if (text.substr(at) == "\n\n") found.push_back(choices);
            return;
        }
        for (size_t i = 0; i < grammar.parts[index].size(); i++) {
            choices.push_back(int(i));
            sentence(index, grammar.parts[index][i], at);
            choices.pop_back();
        }
    }

    void sentence(size_t index, const std::string& rest, size_t at) {
        if (rest.empty()) return part(index + 1, at);
        if (rest[0] != '{') {
            if (at < text.size() && text[at] == rest[0]) sentence(index, rest.substr(1), at + 1);
            return;
        }
        const std::string name = rest.substr(1, rest.find('}') - 1);
        const std::string after = rest.substr(rest.find('}') + 1);
        for (const Slot& slot : grammar.slots) {
            if (slot.name != name) continue;
            const bool known = words.count(name) > 0;
            for (size_t i = 0; i < slot.words.size(); i++) {
                if (known && words[name] != int(i)) continue;
                if (text.compare(at, slot.words[i].size(), slot.words[i]) != 0) continue;
                if (known) {
                    sentence(index, after, at + slot.words[i].size());
                    continue;
                }
                int choice = int(i);
                if (name == "friend") {
                    if (words["hero"] == choice) continue;
                    choice -= choice > words["hero"];
                }
                words[name] = int(i);
                choices.push_back(choice);
                sentence(index, after, at + slot.words[i].size());
                choices.pop_back();
                words.erase(name);
            }
        }
    }
};

std::vector<Story> many_stories(size_t n, uint64_t seed) {
    Rng rng(seed, Stream::corpus);
    std::vector<Story> stories;
    for (size_t i = 0; i < n; i++) stories.push_back(tell_story(rng));
    return stories;
}
}  // namespace

TEST_CASE("stories never change", "[stories]") {
    // Pinned: a result on this corpus can be compared with one from years ago only if the bytes are the same.
    const Stories stories = tell_stories(100000, 1337);
    CHECK(hex64(xxh3(stories.text.data(), 100000)) == "e68a9d8f10c90417");
    CHECK(stories.text.substr(0, 60) == "One day Henry found a white cake in the garden. \"May I see i");
}

TEST_CASE("a longer text of stories starts with the shorter one; another seed is another text", "[stories]") {
    const Stories small = tell_stories(1000, 5), large = tell_stories(3000, 5), other = tell_stories(1000, 6);
    CHECK(small.text.size() >= 1000);
    CHECK(small.text.size() < 1000 + 250);
    CHECK(large.text.substr(0, small.text.size()) == small.text);
    CHECK(other.text.substr(0, 200) != small.text.substr(0, 200));
    CHECK(tell_stories(0, 5).text.empty());
}

TEST_CASE("each story can be read in one way only, and its choices come back", "[stories]") {
    size_t ambiguous = 0, different = 0;
    for (const Story& story : many_stories(3000, 7)) {
        const Parser parser(story.text);
        ambiguous += parser.found.size() != 1;
        different += parser.found.empty() || parser.found[0] != story.choices;
    }
    CHECK(ambiguous == 0);
    CHECK(different == 0);
    CHECK(Parser("One day Anna slept.\n\n").found.empty());
}

TEST_CASE("no word of a slot is a prefix of another, and none holds the end of a story", "[stories]") {
    for (const Slot& slot : story_grammar().slots)
        for (size_t i = 0; i < slot.words.size(); i++)
            for (size_t j = 0; j < slot.words.size(); j++) {
                INFO(slot.words[i] << " " << slot.words[j]);
                CHECK((i == j || slot.words[j].rfind(slot.words[i], 0) != 0));
                CHECK_FALSE(contains(slot.words[i], "\n"));
            }
    for (const auto& sentences : story_grammar().parts)
        for (const std::string& sentence : sentences) CHECK_FALSE(contains(sentence, "\n"));
}

TEST_CASE("stories are short, in ASCII, and the friend is not the hero", "[stories]") {
    size_t shortest = 1000, longest = 0, beyond_ascii = 0;
    for (const Story& story : many_stories(20000, 11)) {
        shortest = std::min(shortest, story.text.size());
        longest = std::max(longest, story.text.size());
        for (const char c : story.text) beyond_ascii += (c < ' ' && c != '\n') || c > '~';
    }
    CHECK(shortest >= 60);
    CHECK(longest <= 220);
    CHECK(beyond_ascii == 0);
}

TEST_CASE("each choice is uniform over as many possibilities as its bits say", "[stories]") {
    // What a choice is about follows from the sentences chosen before it: a slot is drawn where it is first mentioned.
    std::map<std::string, std::vector<double>> counts;
    const size_t n = 3000;
    double bits_of_choices = 0, bits = 0;
    for (const Story& story : many_stories(n, 13)) {
        const StoryGrammar& grammar = story_grammar();
        bits += story.bits;
        size_t next = 0;
        std::map<std::string, bool> seen;
        for (size_t p = 0; p < grammar.parts.size(); p++) {
            const auto count = [&](const std::string& what, size_t possibilities) {
                counts[what].resize(possibilities);
                const size_t choice = size_t(story.choices.at(next++));
                REQUIRE(choice < possibilities);
                counts[what][choice]++;
                bits_of_choices += std::log2(double(possibilities));
                return choice;
            };
            const std::string& sentence = grammar.parts[p][count("part " + std::to_string(p), grammar.parts[p].size())];
            for (size_t at = sentence.find('{'); at != std::string::npos; at = sentence.find('{', at + 1)) {
                const std::string name = sentence.substr(at + 1, sentence.find('}', at) - at - 1);
                if (seen[name]) continue;
                seen[name] = true;
                for (const Slot& slot : grammar.slots)
                    if (slot.name == name) count(name, slot.words.size() - (name == "friend"));
            }
        }
        CHECK(next == story.choices.size());
    }
    CHECK(bits == Approx(bits_of_choices).epsilon(1e-12));
    CHECK(counts.size() == 4 + story_grammar().slots.size());
    for (const auto& [what, histogram] : counts) {
        double total = 0, chi2 = 0;
        for (const double c : histogram) total += c;
        const double expected = total / double(histogram.size()), freedom = double(histogram.size()) - 1;
        for (const double c : histogram) chi2 += (c - expected) * (c - expected) / expected;
        INFO(what << ": chi2 " << chi2 << " with " << freedom << " degrees of freedom");
        CHECK(chi2 < freedom + 5 * std::sqrt(2 * freedom) + 5);  // mean + 5 standard deviations, and the long tail
    }
}

TEST_CASE("the text carries the entropy of the closed form", "[stories]") {
    // bits/bytes over n independent stories is a ratio estimate: with R its limit, its standard deviation is
    // sd(bits - R*bytes) / (sqrt(n) * mean bytes). Five of them: one false alarm in two million seeds.
    const double rate = stories_nats_per_byte() / std::log(2.0);  // bits per byte
    const size_t n = 20000;
    double bits = 0, bytes = 0, squares = 0;
    for (const Story& story : many_stories(n, 17)) {
        bits += story.bits;
        bytes += double(story.text.size());
        squares += std::pow(story.bits - rate * double(story.text.size()), 2);
    }
    const double deviation = std::sqrt(squares / double(n)) / (std::sqrt(double(n)) * bytes / double(n));
    INFO(bits / bytes << " drawn, " << rate << " promised, standard deviation " << deviation);
    CHECK(std::fabs(bits / bytes - rate) < 5 * deviation);
    CHECK(deviation < 1e-3 * rate);  // so that a forgotten choice, 3 percent or more, cannot pass

    const Stories stories = tell_stories(int64_t(bytes) - 1, 17);
    CHECK(stories.num_stories == int64_t(n));
    CHECK(stories.bits == Approx(bits).epsilon(1e-12));
    CHECK(double(stories.text.size()) == bytes);
}
