/*
The built-in corpus: short English stories, generated with the same bytes on every machine and with a known entropy. The
lowest possible loss is stories_nats_per_byte(). So training on them needs no download, and its loss can be compared
with an absolute bound.

A story is an opening, a middle, an optional remark and a closing. These are sentences with slots, such as
"{hero} lost a {color} {thing} {place}.". A slot is drawn when it is first mentioned and then repeated. All draws are
uniform and independent, except that the friend is not the hero. So a story with draws from n1, n2, ... possibilities
has exactly log2(n1) + log2(n2) + ... bits.

The text has the same information, because the draws can be recovered from it: reading from the left, the words that may
come next always differ before they end. (No word of a slot is a prefix of another one, and two sentences that may
follow differ in their first words, or in the first words after a name.) test/data/stories_test.cpp parses stories in
all possible ways and finds exactly one. A story ends with an empty line, which occurs nowhere else, so the bits of a
sequence of stories are the sum of theirs.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/rng.h"  // Rng

// The parts of stories. The first slot is the hero, the second the friend.
struct Slot {
    std::string name;
    std::vector<std::string> words;
};
struct StoryGrammar {
    std::vector<Slot> slots;
    std::vector<std::vector<std::string>> parts;  // opening, middle, remark, closing: the sentences to choose from
};
const StoryGrammar& story_grammar();

struct Story {
    std::string text;          // with the empty line at the end
    std::vector<int> choices;  // in the order of the draws; the friend's choice counts the words other than the hero's
    double bits = 0;
};
// Generates the next story.
Story tell_story(Rng& rng);

struct Stories {
    std::string text;
    double bits = 0;
    int64_t num_stories = 0;
};

// Whole stories of at least min_bytes in total. A longer text from the same seed begins with the same text.
Stories tell_stories(int64_t min_bytes, uint64_t seed);

// The exact entropy rate: the expected bits of a story divided by its expected bytes, in nats. This is the rate of a
// source of independent stories whose ends are recognizable (renewal theorem).
double stories_nats_per_byte();
