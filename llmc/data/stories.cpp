// The grammar of the stories, their generation, and their exact entropy.
#include "llmc/data/stories.h"
#include <algorithm>
#include <cmath>
#include <string_view>
#include "llmc/base/check.h"  // ensure

const StoryGrammar& story_grammar() {
    static const std::vector<std::string> names = {"Anna", "Ben",  "Clara", "David", "Ella", "Finn", "Grace", "Henry",
                                                   "Iris", "Jack", "Kate",  "Leo",   "Mia",  "Noah", "Olive", "Paul"};
    // Words that may follow "a" begin with a consonant.
    static const StoryGrammar grammar = {
        .slots =
            {
                {"hero", names},
                {"friend", names},
                {"thing",
                 {"ball", "book", "cake", "drum", "flute", "hat", "kite", "lamp", "letter", "map", "mirror", "penny",
                  "ring", "scarf", "spoon", "wheel"}},
                {"color", {"red", "blue", "green", "golden", "silver", "white", "brown", "pink"}},
                {"place",
                 {"in the garden", "by the river", "behind the school", "under a bridge", "near the market",
                  "at the beach", "on the roof", "inside a cave"}},
                {"animal", {"dog", "cat", "horse", "fox", "goat", "bear", "rabbit", "donkey"}},
                {"quality", {"lovely", "strange", "tiny", "clever", "heavy", "shiny", "silly", "perfect"}},
                {"feeling", {"happy", "sad", "tired", "proud", "curious", "calm", "hungry", "brave"}},
                {"weather", {"rain", "snow", "thunder", "get dark"}},
                {"food", {"soup", "pancakes", "apple pie", "bread and honey"}},
                {"number", {"two", "three", "seven", "ten"}},
                {"action", {"sing", "dance", "laugh", "cry"}},
            },
        .parts =
            {
                {"One day {hero} found a {color} {thing} {place}.", "{hero} lost a {color} {thing} {place}.",
                 "Last night {hero} hid a {color} {thing} {place}.",
                 "{hero} had a dream about a {color} {thing} {place}."},
                {" \"What a {quality} {thing}!\" said {friend}.", " {friend} came along with a {quality} {animal}.",
                 " A {quality} {animal} took it and ran away.",
                 " \"May I see it?\" asked {friend}, who was {feeling}."},
                {"", " Then it began to {weather}.", " They talked about the {thing} for {number} hours.",
                 " {hero} started to {action}."},
                {" In the end everyone was {feeling}.", " So they all went home and ate {food}.",
                 " \"Good night, {color} {thing},\" said {hero}.", " {hero} remembered it for {number} years."},
            },
    };
    return grammar;
}

namespace {
// A part of a sentence.
struct TextOrSlot {
    std::string text;
    int slot;  // -1: text
};

int slot_named(const std::string& name) {
    const std::vector<Slot>& slots = story_grammar().slots;
    for (size_t i = 0; i < slots.size(); i++)
        if (slots[i].name == name) return int(i);
    ensure(false && "a sentence has a slot without words");
    return -1;
}

std::vector<TextOrSlot> pieces_of(const std::string& sentence) {
    std::vector<TextOrSlot> pieces;
    for (size_t at = 0; at < sentence.size();) {
        const size_t open = std::min(sentence.find('{', at), sentence.size());
        if (open > at) pieces.push_back({sentence.substr(at, open - at), -1});
        if (open == sentence.size()) break;
        const size_t close = sentence.find('}', open);
        pieces.push_back({"", slot_named(sentence.substr(open + 1, close - open - 1))});
        at = close + 1;
    }
    return pieces;
}

// The sentences of story_grammar().parts, parsed once.
const std::vector<std::vector<std::vector<TextOrSlot>>>& parts() {
    static const auto parts = [] {
        std::vector<std::vector<std::vector<TextOrSlot>>> all;
        for (const std::vector<std::string>& part : story_grammar().parts) {
            all.emplace_back();
            for (const std::string& sentence : part) all.back().push_back(pieces_of(sentence));
        }
        return all;
    }();
    return parts;
}

constexpr size_t kHero = 0, kFriend = 1;  // in story_grammar().slots

// The number of words that a slot is drawn from: the friend has any name but the hero's.
int num_words(size_t slot) { return int(story_grammar().slots[slot].words.size()) - (slot == kFriend); }

constexpr std::string_view kEnd = "\n\n";
}  // namespace

Story tell_story(Rng& rng) {
    const std::vector<Slot>& slots = story_grammar().slots;
    Story story;
    const auto draw = [&](int n) {
        const int choice = int(rng.below(uint64_t(n)));
        story.choices.push_back(choice);
        story.bits += std::log2(n);
        return choice;
    };
    std::vector<int> words(slots.size(), -1);  // by slot; -1: not drawn yet
    for (const auto& sentences : parts()) {
        for (const TextOrSlot& piece : sentences[size_t(draw(int(sentences.size())))]) {
            story.text += piece.text;
            if (piece.slot < 0) continue;
            const size_t slot = size_t(piece.slot);
            if (words[slot] < 0) {
                words[slot] = draw(num_words(slot));
                ensure(words[kHero] >= 0);
                if (slot == kFriend && words[slot] >= words[kHero]) words[slot]++;
            }
            story.text += slots[slot].words[size_t(words[slot])];
        }
    }
    story.text += kEnd;
    return story;
}

Stories tell_stories(int64_t min_bytes, uint64_t seed) {
    Rng rng(seed, Stream::corpus);
    Stories stories;
    while (int64_t(stories.text.size()) < min_bytes) {
        const Story story = tell_story(rng);
        stories.text += story.text;
        stories.bits += story.bits;
        stories.num_stories++;
    }
    return stories;
}

double stories_nats_per_byte() {
    const std::vector<Slot>& slots = story_grammar().slots;
    // The mean length of each slot's words. All are equally likely, also for the friend, by symmetry.
    std::vector<double> mean_bytes;
    for (const Slot& slot : slots) {
        double bytes = 0;
        for (const std::string& word : slot.words) bytes += double(word.size());
        mean_bytes.push_back(bytes / double(slot.words.size()));
    }

    // Expectations are linear, so it suffices to enumerate the choices of sentences: which slots they draw, and how
    // often they mention them.
    double skeletons = 1, bits = 0, bytes = 0;
    for (const auto& sentences : parts()) skeletons *= double(sentences.size());
    for (int64_t skeleton = 0; skeleton < int64_t(skeletons); skeleton++) {
        bits += std::log2(skeletons);
        bytes += double(kEnd.size());
        std::vector<bool> drawn(slots.size());
        int64_t rest = skeleton;
        for (const auto& sentences : parts()) {
            for (const TextOrSlot& piece : sentences[size_t(rest) % sentences.size()]) {
                bytes += double(piece.text.size());
                if (piece.slot < 0) continue;
                const size_t slot = size_t(piece.slot);
                bytes += mean_bytes[slot];
                if (!drawn[slot]) bits += std::log2(num_words(slot));
                drawn[slot] = true;
            }
            rest /= int64_t(sentences.size());
        }
    }
    return bits / bytes * std::log(2.0);
}
