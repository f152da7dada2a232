/*
The built-in corpus: little English stories, generated, the same bytes on every machine, with exactly known entropy. A
perfect model has a loss of stories_nats_per_byte(), and none has a lower one. So training on them needs no download and
measures an optimizer in absolute terms.

A story is an opening, a middle, a remark (or none) and a closing: sentences with slots, such as
"{hero} lost a {color} {thing} {place}.". A slot is drawn when it is first mentioned and repeated from then on; all
draws are uniform and independent, except that the friend is not the hero. So a story with draws among n1, n2, ...
possibilities carries exactly log2(n1) + log2(n2) + ... bits.

That is its information as text, too, because the text gives the draws away: reading from the left, the words that may
come next always differ before they end. (The words of a slot are no prefixes of one another, and two sentences that
may follow differ in their first words, or in the first words after a name.) test/data/stories_test.cpp parses stories
in all possible ways and finds one. A story ends with an empty line, which occurs nowhere else, so the bits of a text of
stories are the sum of theirs.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/rng.h"  // Rng

// What stories are made of. The first slot is the hero, the second the friend.
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
    std::vector<int> choices;  // in the order of the draws; the friend counts the words that are not the hero's
    double bits = 0;
};
Story tell_story(Rng& rng);

struct Stories {
    std::string text;
    double bits = 0;
    int64_t num_stories = 0;
};

// Whole stories, at least min_bytes in total. A longer text from the same seed starts with the same text.
Stories tell_stories(int64_t min_bytes, uint64_t seed);

// The entropy rate in closed form: expected bits of a story over its expected bytes, in nats. A source of independent
// stories, each of which shows where it ends, has exactly this rate (renewal theorem).
double stories_nats_per_byte();
